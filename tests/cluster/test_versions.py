# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which Kubernetes these tests run on, and that it is not taken for another one."""

from __future__ import annotations

import json

import pytest
from testcluster import cluster as clusters
from testcluster import releases, settings
from testcluster.cluster import Cluster
from testcluster.errors import ClusterError


@pytest.fixture
def own(cluster) -> Cluster:
    if not isinstance(cluster, Cluster):
        pytest.skip("the cluster of --kubeconfig is not ours: its version was not asked for")
    return cluster


def test_the_cluster_is_of_the_version_that_was_asked_for(own):
    """API server and every kubelet are of the release that ROVER_KF_TEST_KUBERNETES names."""
    wanted = releases.find(settings.kubernetes())
    server = json.loads(own.get_raw("/version"))["gitVersion"]
    nodes = json.loads(own.get_raw("/api/v1/nodes"))["items"]
    kubelets = [node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes]
    print(f"API server {server}, kubelets {kubelets}")
    assert server == wanted.version
    assert kubelets == [wanted.version] * own.size


def test_a_cluster_of_another_version_is_not_taken(own, monkeypatch):
    """While it runs, asking for another version is refused at once; nothing is compiled."""
    other = next(release for release in releases.RELEASES if release != own.release)
    monkeypatch.setenv("ROVER_KF_TEST_KUBERNETES", other.minor)
    with pytest.raises(ClusterError, match=f"Kubernetes {own.release.version} runs in .* down"):
        clusters.up()
    assert clusters.current() == own
