# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What `--kubeconfig` stands on, tried on the cluster at hand as if it were somebody else's."""

from __future__ import annotations

import signal

import pytest
from testcluster import jobs, objects
from testcluster.deployment import ProjectImages
from testcluster.errors import ClusterError
from testcluster.faults import ProcessFaults
from testcluster.foreign import ForeignCluster
from testcluster.objects import apply
from testcluster.pod_processes import ByExec
from testcluster.trainer_image import TrainerImage

from tests.support.waiting import eventually


@pytest.fixture
def foreign(cluster):
    """The cluster, known by nothing but its kubeconfig."""
    if isinstance(cluster, ForeignCluster):
        return cluster
    return ForeignCluster(cluster.kubeconfig, program=cluster.binaries["kubectl"])


def _pod(cluster, namespace: str) -> dict:
    return objects.get(cluster, namespace, "pod", "victim")


def test_a_process_dies_by_exec(foreign, namespace, toolbox_image):
    """kubectl exec lists a container's processes and ends any of them but the first."""
    faults = ProcessFaults(ByExec(foreign))
    command = ["sh", "-c", "sleep 100000 & sleep 99999; exit 1"]
    apply(foreign, [objects.toolbox("victim", namespace, command, image=toolbox_image)])
    eventually(lambda: objects.pod_ready(_pod(foreign, namespace)), within=120)

    def commands() -> list[str]:
        return [process.command for process in faults.processes(namespace, "victim")]

    running = ["sh -c " + command[2], "sleep 100000", "sleep 99999"]
    eventually(lambda: commands() == running, what=f"processes {running}")
    with pytest.raises(ClusterError, match="first process of container main of victim"):
        faults.kill(namespace, "victim", matching="^sh -c", number=signal.SIGKILL)
    (killed,) = faults.kill(namespace, "victim", container="main")
    assert killed.command == "sleep 99999"
    status = eventually(
        lambda: (
            (found := _pod(foreign, namespace)["status"]["containerStatuses"][0])["restartCount"]
            and found
        ),
        within=60,
    )
    assert status["lastState"]["terminated"]["exitCode"] == 1


def test_scripts_reach_an_image_that_lacks_them(foreign, namespace, toolbox_image):
    """A job with a trainer image finds the test's scripts where it would find this machine's."""
    script = "cat digits.py /tools/traced.py; id -u; echo $HOME"
    job = objects.pytorchjob("reader", namespace, ["sh", "-c", script], workers=1, memory="32Mi")
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["containers"][0]["workingDir"] = "/workspace"
    trainer = TrainerImage(foreign, namespace, toolbox_image)
    apply(foreign, [trainer(job, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
    running = jobs.RunningJob(foreign, namespace, "reader")
    assert eventually(running.verdict, within=120, what="the job's end") == "Succeeded"
    files = [jobs.SAMPLES / "digits.py", jobs.TOOLS / "traced.py"]
    sent = "".join(path.read_text() for path in files)
    assert running.log("reader-worker-0") == sent + "65532\n/tmp\n"


@pytest.mark.parametrize(
    ("text", "prefix", "tag"),
    [("localhost:dev", "localhost", "dev"), ("host:5000/team:1.2", "host:5000/team", "1.2")],
)
def test_images_are_named_by_prefix_and_tag(text, prefix, tag):
    """PREFIX:TAG may have a registry's port in its prefix."""
    assert ProjectImages.parse(text) == ProjectImages(prefix, tag)


@pytest.mark.parametrize("text", ["localhost", "host:5000/team", ":dev", "localhost:"])
def test_a_name_without_prefix_or_tag_is_refused(text):
    """What is not PREFIX:TAG is refused with what it stands for."""
    with pytest.raises(ValueError, match="PREFIX/rover-kf-controller:TAG"):
        ProjectImages.parse(text)
