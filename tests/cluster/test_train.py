# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""`rover-kf train SCRIPT --image …` on a real cluster, as docs/quickstart.md has it.

An image with Python and torch, scripts out of a ConfigMap, nothing of rover-kf in the image.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time

import pytest
from testcluster import torch_image
from testcluster.cluster import Cluster
from testcluster.images import Images
from testcluster.jobs import RunningJob
from testcluster.objects import get
from testcluster.settings import REPOSITORY, cache

from tests.support.waiting import eventually

PAGE = REPOSITORY / "docs" / "quickstart.md"
IMAGE = "registry.example.com/python-torch:latest"
"""What the page calls the user's own."""

pytestmark = [
    pytest.mark.at_length,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("controller"),
    # Images with torch run as root, as do these: `train` sets no security context.
    pytest.mark.parametrize("namespace", ["baseline"], indirect=True),
]


@pytest.fixture(scope="module")
def image(cluster, request) -> str:
    """An image with Python and torch."""
    if isinstance(cluster, Cluster):
        cluster.load(torch_image.build(Images(cache())))
        return torch_image.TORCH_IMAGE
    given = request.config.getoption("--trainer-image")
    return given or pytest.skip("name an image with Python >= 3.10 and torch by --trainer-image")


@pytest.fixture
def rover(cluster, namespace, image, tmp_path):
    """Run a line of the page in the repository, with the namespace and the image of this test."""
    told = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "HOME": str(tmp_path)}
    told |= {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}

    def run(line: str) -> str:
        words = [{IMAGE: image, "team": namespace}.get(word, word) for word in shlex.split(line)]
        assert words[0] == "rover-kf"
        done = subprocess.run(
            [sys.executable, "-m", "rover_kf.cli", *words[1:]],
            env=told,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def _lines() -> list[str]:
    """What the page has a user type once the cluster is prepared."""
    text = PAGE.read_text().partition("## The same on a cluster")[2].partition("\n## ")[0]
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", "")
    return [
        line
        for line in blocks.splitlines()
        if line.startswith("rover-kf ") and "doctor" not in line
    ]


def test_a_script_that_knows_nothing_of_it_becomes_an_elastic_job(cluster, namespace, rover):
    """torchrun's own script trains with two replicas of up to two; its job has the bounds, the
    sidecar, and its script, which goes when it goes."""
    rover(
        f"rover-kf train --image {IMAGE} --replicas 1:2 -n team --name plain --cpu 100m "
        "--memory 1Gi manifests/samples/plain.py --steps 100"
    )
    job = RunningJob(cluster, namespace, "plain")
    assert job.read()["spec"]["elasticPolicy"] == {"minReplicas": 1, "maxReplicas": 2}
    assert eventually(job.verdict, within=240, every=0.5, what="the job's end") == "Succeeded"
    assert "trained by 2" in job.log("plain-worker-0") + job.log("plain-worker-1")
    cluster.kubectl("-n", namespace, "delete", "pytorchjob", "plain", "--timeout=60s")
    eventually(lambda: "plain" not in _maps(cluster, namespace), within=60, every=0.5)


def test_the_page_on_a_cluster(cluster, namespace, rover, shared_claim, faults):
    """The page's lines as they stand: seven lines more in the script, and a killed process costs
    what it had done since the last step in memory."""
    begun = time.monotonic()
    shared_claim("checkpoints")
    train, *looks = _lines()
    rover(train)
    job = RunningJob(cluster, namespace, "third")
    eventually(lambda: (job.status().get("sealed_step") or 0) >= 20, within=240, every=0.3)
    before = job.status()
    faults.kill(namespace, "third-worker-1", container="pytorch", matching="elastic.py")
    assert eventually(job.verdict, within=240, every=0.5, what="the job's end") == "Succeeded"
    said = [rover(line) for line in looks]
    resumed = re.search(r"resumes at step (\d+) from memory", _story(job))
    assert resumed, said
    assert int(resumed[1]) >= before["sealed_step"]
    print(f"\nthe page's commands on the cluster took {time.monotonic() - begun:.0f} s")


def _maps(cluster, namespace: str) -> list[str]:
    return [item["metadata"]["name"] for item in get(cluster, namespace, "configmaps")["items"]]


def _story(job: RunningJob) -> str:
    return "\n".join(event["message"] for event in job.events())
