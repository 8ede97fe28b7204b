# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that need a real cluster.

    pytest tests/cluster                     starts a cluster (or uses the one of `make cluster-up`)
    pytest tests/cluster --keep-cluster      leaves it running afterwards
    pytest tests/cluster --chaos all         with every fault, and with tests that take minutes
    pytest tests/cluster --kubeconfig FILE   uses that cluster, which has the Training Operator; of
        its images and its storage it is told by --trainer-image, --toolbox-image, --images and
        --storage-class; tests that break nodes are skipped

Without root, Go or the Debian packages these tests are skipped with the reason; with CI=true they
fail.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import uuid
from collections.abc import Iterator

import pytest
from testcluster import cluster as clusters
from testcluster import (
    deployment,
    host_python,
    jobs,
    logs,
    options,
    packages,
    settings,
    storage,
    trainer,
)
from testcluster.cluster import Cluster
from testcluster.deployment import ProjectImages
from testcluster.faults import NodeFaults, ProcessFaults
from testcluster.foreign import ForeignCluster
from testcluster.images import TOOLBOX_IMAGE, Images
from testcluster.objects import apply
from testcluster.pod_processes import ByExec, OnMachine
from testcluster.trainer_image import TrainerImage

_USED = pytest.StashKey[list[str]]()


def pytest_addoption(parser):
    options.declare(parser.getgroup("cluster"))


def pytest_collection_modifyitems(config, items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            # The first test's fixtures compile Kubernetes: what they do has limits of its own.
            given = item.get_closest_marker("timeout")
            seconds = given.args[0] if given else float(config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(seconds, func_only=True), append=False)
    if config.getoption("--chaos", default=None) != "all":
        long = [item for item in items if item.get_closest_marker("at_length")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def pytest_terminal_summary(terminalreporter):
    counts = {
        outcome: sum(
            "cluster" in report.keywords for report in terminalreporter.getreports(outcome)
        )
        for outcome in ("passed", "failed", "skipped")
    }
    if any(counts.values()):
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        terminalreporter.write_line(f"real-cluster tests: {told}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    cluster = item.funcargs.get("cluster") if hasattr(item, "funcargs") else None
    if report.failed and cluster is not None and call.when in ("setup", "call"):
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", item.nodeid.removeprefix("tests/cluster/"))
        folder = settings.REPOSITORY / "build" / "cluster-logs" / name
        daemons = cluster.root / "log" if isinstance(cluster, Cluster) else None
        used = [*item.stash.get(_USED, []), deployment.NAMESPACE]
        logs.collect(cluster.kubectl, used, folder, daemons)
        report.sections.append(("cluster logs", f"collected in {folder}"))
    return report


def _unmet() -> str:
    if os.geteuid() != 0:
        return "not root: network namespaces, mounts and control groups cannot be made"
    lacking = packages.missing()
    if lacking:
        return f"missing programs: {lacking}; run python3 tests/cluster/testcluster/packages.py"
    return "" if shutil.which("go") else "Go is not on PATH: Kubernetes cannot be compiled"


@pytest.fixture(scope="session")
def cluster(request) -> Iterator[Cluster | ForeignCluster]:
    """The cluster that this session's tests share."""
    given = request.config.getoption("--kubeconfig", default=None)
    if given:
        yield ForeignCluster(given.resolve())
        return
    reason = _unmet()
    if reason:
        if settings.in_ci():
            pytest.fail(f"real-cluster tests must run in CI: {reason}")
        pytest.skip(reason)
    found = clusters.current()
    with clusters.using():
        running = clusters.up()
        yield running
    if found is None and not request.config.getoption("--keep-cluster", default=False):
        clusters.down_unless_used(running.root)


@pytest.fixture
def faults(cluster) -> ProcessFaults:
    """Ways to end processes of pods: from outside where we can, else through kubectl exec."""
    foreign = isinstance(cluster, ForeignCluster)
    return ProcessFaults(ByExec(cluster) if foreign else OnMachine(cluster))


@pytest.fixture
def node_faults(cluster) -> NodeFaults:
    """Ways to break nodes; only those of our own making may be broken."""
    if isinstance(cluster, ForeignCluster):
        pytest.skip(
            "the cluster of --kubeconfig is not ours: its nodes cannot be stopped or cut off"
        )
    return NodeFaults(cluster)


@pytest.fixture(scope="session")
def toolbox_image(cluster, request) -> str:
    """Image of pods that only need busybox."""
    foreign = isinstance(cluster, ForeignCluster)
    return request.config.getoption("--toolbox-image") if foreign else TOOLBOX_IMAGE


@pytest.fixture(scope="session")
def project_images(cluster, request) -> ProjectImages | None:
    """Controller and sidecar: on our own cluster built from the working tree and on every node.

    On a foreign one what --images says; None leaves what the manifests say.
    """
    if isinstance(cluster, ForeignCluster):
        return request.config.getoption("--images")
    images = Images(settings.cache()).project()
    cluster.load(images)
    return ProjectImages.built(images)


@pytest.fixture(scope="session")
def controller(cluster, project_images, tmp_path_factory) -> Iterator[str]:
    """The controller as `kubectl apply -k manifests/overlays/standalone` deploys it; its namespace.

    Taken away again from a foreign cluster that did not have it.
    """
    overlay = settings.REPOSITORY / "manifests" / "overlays" / "standalone"
    if project_images is not None:
        overlay = deployment.overlay(tmp_path_factory.mktemp("overlay"), overlay, project_images)
    objects = cluster.kubectl("kustomize", str(overlay))
    had = deployment.is_there(cluster)
    cluster.kubectl("apply", "-f", "-", text=objects)
    deployment.wait(cluster)
    yield deployment.NAMESPACE
    if isinstance(cluster, ForeignCluster) and not had:
        cluster.kubectl("delete", "-f", "-", "--timeout=180s", text=objects, timeout=200)


@pytest.fixture
def controller_down(cluster, controller):
    """Take the controller away when called; it is back after the test."""
    taken: list[str] = []

    def take() -> None:
        taken.append(controller)
        deployment.scale(cluster, 0)

    yield take
    if taken:
        deployment.scale(cluster, 1)


@pytest.fixture(scope="session")
def ended_namespaces(cluster) -> Iterator[list[str]]:
    """Namespaces whose deletion has begun; that each of them ends is seen to at the very end."""
    ended: list[str] = []
    yield ended
    _gone(cluster, ended)
    for name in ended:
        if isinstance(cluster, Cluster):
            cluster.kubectl("delete", "persistentvolume", "-l", f"{storage.NAMESPACE_LABEL}={name}")
            shutil.rmtree(_shared_folder(cluster, name), ignore_errors=True)


@pytest.fixture
def room(cluster, ended_namespaces) -> None:
    """Nothing is left of earlier tests: for those that count on what room the nodes have."""
    _gone(cluster, ended_namespaces)


def _gone(cluster, namespaces: list[str]) -> None:
    for name in namespaces:
        waiting = ("--ignore-not-found", "--wait=true", "--timeout=180s")
        cluster.kubectl("delete", "namespace", name, *waiting, timeout=200)


@pytest.fixture
def make_namespace(cluster, ended_namespaces, request):
    """Make namespaces under a pod-security profile; each begins to be deleted after the test."""
    made: list[str] = []
    request.node.stash[_USED] = made

    def make(profile: str = "restricted") -> str:
        name = f"test-{uuid.uuid4().hex[:8]}"
        labels = {f"pod-security.kubernetes.io/{mode}": profile for mode in ("enforce", "warn")}
        metadata = {"name": name, "labels": labels}
        document = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        cluster.kubectl("create", "-f", "-", text=json.dumps(document))
        made.append(name)
        return name

    yield make
    for name in made:
        cluster.kubectl("delete", "namespace", name, "--wait=false")
        ended_namespaces.append(name)


@pytest.fixture
def namespace(make_namespace, request) -> str:
    """A namespace of this test's own, under the restricted profile or the one it is given."""
    return make_namespace(getattr(request, "param", "restricted"))


@pytest.fixture
def with_trainer(cluster, namespace, request) -> trainer.Trainer:
    """Give jobs of the namespace Python, torch (TFJobs: TensorFlow) and a test's scripts."""
    if isinstance(cluster, Cluster):
        apply(cluster, host_python.host_volume(namespace))
        return host_python.with_host_python
    image = request.config.getoption("--trainer-image")
    if not image:
        pytest.skip(
            "the nodes of --kubeconfig do not see this machine's Python; name an image with "
            "Python >= 3.10, torch, numpy and scikit-learn by --trainer-image"
        )
    return TrainerImage(cluster, namespace, image)


@pytest.fixture
def shared_claim(cluster, namespace, request):
    """Make a claim that every pod of the namespace may write."""

    def make(claim: str) -> None:
        if isinstance(cluster, ForeignCluster):
            chosen = request.config.getoption("--storage-class")
            apply(cluster, [storage.provided(namespace, claim, chosen)])
            return
        folder = _shared_folder(cluster, namespace) / claim
        apply(cluster, storage.shared(namespace, claim, folder))

    return make


@pytest.fixture
def hurry(cluster, namespace):
    """Let a slow training of the namespace go on as fast as it can, once a test has seen of it what
    it wanted to see; on storage that is not ours it stays slow."""

    def tell() -> None:
        if isinstance(cluster, Cluster):
            (_shared_folder(cluster, namespace) / jobs.CLAIM / jobs.HURRY).touch()

    return tell


@pytest.fixture
def checkpoints(cluster, namespace, shared_claim) -> pathlib.Path:
    """The folder behind the claim of the digits job."""
    if isinstance(cluster, ForeignCluster):
        pytest.skip("the storage of --kubeconfig is not ours: the folder behind a claim is unknown")
    shared_claim(jobs.CLAIM)
    return _shared_folder(cluster, namespace) / jobs.CLAIM


def _shared_folder(cluster: Cluster, namespace: str) -> pathlib.Path:
    return cluster.root / "shared" / namespace
