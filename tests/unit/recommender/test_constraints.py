# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What may be had: quotas, nodes, limit ranges, prices."""

from __future__ import annotations

import pytest

from rover_kf import errors
from rover_kf.api.cluster_capacity import Headroom
from rover_kf.client import namespace_limits
from rover_kf.recommender import job_signature as reading
from rover_kf.recommender.constraints import Constraints
from rover_kf.recommender.price import PriceTable
from rover_kf.recommender.recommend import combine_evidence

GIB = 1 << 30


def facts(workers=8, low=1, cpu="2", memory="4Gi"):
    stated = {"requests": {"cpu": cpu, "memory": memory}}
    container = {"name": "pytorch", "command": ["python", "t.py"], "resources": stated}
    worker = {"replicas": workers, "template": {"spec": {"containers": [container]}}}
    elastic = {"minReplicas": low, "maxReplicas": 16}
    return reading.from_manifest(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "digits", "namespace": "team"},
            "spec": {"elasticPolicy": elastic, "pytorchReplicaSpecs": {"Worker": worker}},
        }
    )


def node(cpu, memory, **more):
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110"}
    return {"spec": more, "status": {"allocatable": allocatable}}


class Objects:
    """Collections by their last word; what is not there is forbidden."""

    def __init__(self, **collections):
        self._collections = collections

    def items(self, path, *, what):
        found = self._collections.get(path.rpartition("/")[2])
        if found is None:
            raise errors.InputError(f"{what}: forbidden")
        return found


def test_bounds_are_read_from_the_cluster():
    """Nodes that take pods, what a quota leaves, a container's max and min."""
    quota = {
        "status": {
            "hard": {"requests.cpu": "10", "limits.cpu": "12", "memory": "20Gi", "pods": "9"},
            "used": {"requests.cpu": "500m", "limits.cpu": "4", "memory": "4Gi"},
        }
    }
    scoped = {"spec": {"scopes": ["BestEffort"]}, "status": {"hard": {"pods": "0"}}}
    rule = {"type": "Container", "max": {"memory": "8Gi"}, "min": {"cpu": "100m"}}
    ranges = [{"spec": {"limits": [rule, {"type": "Pod", "max": {"memory": "1Gi"}}]}}]
    nodes = [node("4", "16Gi"), node("8", "32Gi", unschedulable=True)]
    api = Objects(nodes=nodes, resourcequotas=[quota, scoped], limitranges=ranges)
    found = namespace_limits.read(api, "team")
    assert found.nodes == (Headroom(4, 16 * GIB, 0, 110),)
    assert found.quotas == (Headroom(8, 16 * GIB, None, 9),)
    assert found.container_max == Headroom(memory=8 * GIB)
    assert found.container_min == Headroom(cpu=0.1)
    assert not found.unread


def test_what_may_not_be_read_is_named_and_bounds_nothing():
    """A user without rights on nodes gets sizes all the same."""
    found = namespace_limits.read(Objects(resourcequotas=[]), "team")
    assert (found.nodes, found.quotas) == ((), ())
    assert [note.split(" could")[0] for note in found.unread] == ["nodes", "limit ranges of team"]


def test_a_quota_bounds_replicas_with_the_sidecar_counted():
    """10 cores hold four pods of 2.05; nodes of 3 cores hold one each."""
    found = combine_evidence(facts(), (), None, Constraints(quotas=(Headroom(cpu=10.0),)))
    assert found.get("replicas").target == 4
    nodes = (Headroom(cpu=3.0), Headroom(cpu=3.0), Headroom(cpu=1.0))
    assert combine_evidence(facts(), (), None, Constraints(nodes=nodes)).get("replicas").target == 2


def test_too_small_a_quota_is_told():
    """The least that the job may have does not go in: a note, and not a word of more."""
    found = combine_evidence(facts(low=4), (), None, Constraints(quotas=(Headroom(cpu=5.0),)))
    assert found.get("replicas").target == 2
    assert "room for 2 of the 4" in found.notes[0]


def test_a_node_bounds_a_replica():
    """Memory is cut to what the largest node has beside the arena; cores to its cores."""
    nodes = (Headroom(cpu=1.5, memory=4.0 * GIB), Headroom(cpu=1.0, memory=2.0 * GIB))
    found = combine_evidence(facts(), (), None, Constraints(nodes=nodes))
    memory, arena = found.get("memory"), found.get("arena")
    assert memory.target < 4 * GIB
    assert memory.upper == memory.target
    assert "that may be had" in memory.why
    assert arena.target == 2 * GIB
    assert found.get("cpu").target == pytest.approx(1.45)


def test_a_limit_range_cuts_and_raises():
    """Max of a container, and its min."""
    most = Constraints(container_max=Headroom(memory=float(GIB)))
    assert combine_evidence(facts(), (), None, most).get("memory").target == GIB
    least = combine_evidence(facts(), (), None, Constraints(container_min=Headroom(cpu=3.0))).get(
        "cpu"
    )
    assert (least.target, least.lower) == (3.0, 3.0)
    assert "raised" in least.why


def test_prices(tmp_path):
    """Cores, GiB of memory and arena, for all pods; the file is checked."""
    file = tmp_path / "prices.yaml"
    file.write_text("{currency: EUR, cpu: 0.5, memory: 0.25}")
    found = combine_evidence(facts(workers=2), (), None, None, prices=PriceTable.read(file)).cost
    assert found.per_hour == pytest.approx(2 * (2 * 0.5 + (4 + 2) * 0.25))
    assert found.hours is None
    assert found.total is None
    for wrong in ("{gpus: 1}", "{cpu: -1}", "{cpu: much}", "[1]", "{"):
        file.write_text(wrong)
        with pytest.raises(errors.InputError, match="prices"):
            PriceTable.read(file)
