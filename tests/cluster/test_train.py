# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""`rover-kf train SCRIPT --image …` on a real cluster.

An image with Python and torch, scripts out of a ConfigMap, nothing of rover-kf in the image.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
from testcluster import torch_image
from testcluster.cluster import Cluster
from testcluster.images import Images
from testcluster.jobs import RunningJob
from testcluster.objects import get
from testcluster.settings import REPOSITORY, cache
from tests_support import eventually

IMAGE = "registry.example.com/python-torch:latest"
"""What docs/quickstart.md calls the user's own."""

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
    """Run a command in the repository, with the namespace and the image of this test."""
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


def _maps(cluster, namespace: str) -> list[str]:
    return [item["metadata"]["name"] for item in get(cluster, namespace, "configmaps")["items"]]
