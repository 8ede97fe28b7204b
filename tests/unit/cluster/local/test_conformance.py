# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster does what every cluster must."""

from __future__ import annotations

import pytest
from conformance import ClusterConformance

from rover_kf.api import names
from rover_kf.cluster.local import LocalCluster


@pytest.fixture
def place(tmp_path):
    with LocalCluster(tmp_path / "state") as found:
        yield found


@pytest.fixture
def namespace():
    return "somewhere"


@pytest.fixture
def manifest(namespace):
    def make(name, script, workers=1):
        container = {"name": "pytorch", "image": "none", "command": ["sh", "-c", script]}
        worker = {"replicas": workers, "template": {"spec": {"containers": [container]}}}
        return {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {names.INJECT_LABEL: "true"},
            },
            "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
        }

    return make


class TestLocalCluster(ClusterConformance):
    """On this machine."""
