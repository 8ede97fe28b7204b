# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The real cluster does what every cluster must: the suite that the embedded one passes, too."""

from __future__ import annotations

import pytest
from conformance import ClusterConformance
from testcluster import objects

from rover_kf.api import names
from rover_kf.cluster.kubernetes import config


@pytest.fixture
def place(cluster):
    return config.from_environment(kubeconfig=str(cluster.kubeconfig))


@pytest.fixture
def namespace(make_namespace):
    """Stock pods of busybox run as root: no restricted profile here."""
    return make_namespace("privileged")


@pytest.fixture
def manifest(namespace, toolbox_image):
    def make(name, script, workers=1):
        job = objects.pytorchjob(
            name, namespace, ["sh", "-c", script], workers=workers, cpu="10m", memory="32Mi"
        )
        job["metadata"]["labels"] = {names.INJECT_LABEL: "true"}
        pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        pod["containers"][0]["image"] = toolbox_image
        return job

    return make


class TestKubernetesCluster(ClusterConformance):
    """On real kubelets, by the real Training Operator."""
