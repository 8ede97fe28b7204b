# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who keeps whose slots, one step at a time, and never so that saves are stopped."""

from __future__ import annotations

import collections
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from rover_kf.api.checkpoints import SlotInfo
from rover_kf.api.replication import ReplicateOrder
from rover_kf.api.states import State
from rover_kf.coordinator.replication.placement import (
    COPY_TIMEOUT_SECONDS,
    MIN_KEEPER_RATE,
    ReplicaPlacement,
    choose_partners,
)
from tests.support.states import identities


def _s(round_: int, step: int) -> State:
    return identities.state(step, round_)


def _held(rank: int, *, pod: str = "", node: str = "", world: int = 9) -> SlotInfo:
    return SlotInfo(
        pod or f"pod-{rank}", "10.0.0.1:7411", 0, rank, world, identities.state(7),
        replicated=False, snapshot_bytes=1, checksum=1, pieces=True, node=node,
    )  # fmt: skip


def _ring(count: int) -> ReplicaPlacement:
    ring = ReplicaPlacement()
    ring.on_sealed(_s(1, 10), [_held(rank, world=count) for rank in range(count)])
    return ring


def _on_nodes(nodes: Sequence[str]) -> list[SlotInfo]:
    """One rank a pod, in that order of nodes."""
    return [_held(rank, node=node, world=len(nodes)) for rank, node in enumerate(nodes)]


def _max_elsewhere(nodes: Sequence[str]) -> int:
    """How many pods at most one assignment of pods to pods keeps on another node; a pod without a
    known node is alone on its own."""
    names = np.array([node or f"alone-{rank}" for rank, node in enumerate(nodes)])
    matched = maximum_bipartite_matching(csr_matrix(names[:, None] != names[None, :]))
    return int((matched >= 0).sum())


def _check_placement(nodes: Sequence[str]) -> None:
    """Each pod is kept by one other pod, and by one elsewhere as often as any assignment allows."""
    holdings = _on_nodes(nodes)
    kept_by = {kept: keeper for keeper, kept in choose_partners(holdings).items()}
    where = {h.pod: h.node or f"alone-{h.rank}" for h in holdings}
    assert sorted(kept_by) == sorted(kept_by.values()) == sorted(where)
    assert all(pod != keeper for pod, keeper in kept_by.items())
    elsewhere = sum(where[pod] != where[keeper] for pod, keeper in kept_by.items())
    assert elsewhere == _max_elsewhere(nodes)
    if max(collections.Counter(where.values()).values()) * 2 <= len(nodes):
        assert elsewhere == len(nodes)


def test_each_pod_keeps_the_next_ones_slots():
    """All ranks of it; the last pod keeps the first one's. A single pod keeps nothing."""
    holdings = [_held(0, pod="a"), _held(1, pod="a"), _held(2, pod="b"), _held(3, pod="c")]
    assert choose_partners(holdings) == {"a": "b", "b": "c", "c": "a"}
    assert choose_partners(holdings[:2]) == {}


@given(st.lists(st.sampled_from(["n1", "n2", "n3", ""]), min_size=2, max_size=9))
@settings(deadline=None)
def test_a_partner_is_on_another_node_where_there_is_one(nodes):
    """Every pod has a partner that is not itself, and another node's if every pod can have one."""
    found = choose_partners(_on_nodes(nodes))
    crowded = any(node and nodes.count(node) * 2 > len(nodes) for node in nodes)
    for rank, node in enumerate(nodes):
        partner = int(found[f"pod-{rank}"].removeprefix("pod-"))
        assert partner != rank
        if node and not crowded:
            assert nodes[partner] != node


@given(st.lists(st.sampled_from(["n1", "n2", "n3", "n4", ""]), min_size=2, max_size=16))
@example(["n1", "n1", "n2"])
@example(["n1", "n2", "n2"])
@settings(deadline=None)
def test_each_pod_is_kept_and_elsewhere_where_that_is_possible(nodes):
    """A pod that nobody keeps would take its slots along."""
    _check_placement(nodes)


def test_each_pod_is_kept_in_ten_thousand_placements():
    """2 to 16 pods on 1 to 8 nodes, in any order of ranks."""
    chosen = random.Random(20261128)
    for _ in range(10_000):
        count = chosen.randint(1, 8)
        _check_placement([f"n{chosen.randrange(count)}" for _ in range(chosen.randint(2, 16))])


@pytest.mark.parametrize("nodes", ["aab", "abb", "aabbb", "aaab"])
def test_a_replicated_step_is_in_another_pod_whole(nodes):
    """What all pods copy, taken together, is every rank's slot."""
    placement = ReplicaPlacement()
    holdings = _on_nodes(nodes)
    placement.on_sealed((1, 10), holdings)
    placement.due(None)
    orders = {h.pod: placement.order(h.pod) for h in holdings}
    copied = sorted(slot.rank for order in orders.values() for slot in order.slots)
    for pod in orders:
        placement.on_finished(pod, placement.number, done=True)
    assert placement.replicated == (1, 10)
    assert copied == list(range(len(nodes)))


def test_a_step_whose_orders_lack_a_rank_is_not_replicated():
    """A slot that no pod was to copy goes with its pod."""
    placement = ReplicaPlacement()
    placement.on_sealed((1, 10), [_held(rank, world=4) for rank in range(3)])
    placement.due(None)
    for rank in range(3):
        placement.on_finished(f"pod-{rank}", placement.number, done=True)
    assert (placement.in_progress, placement.replicated) == (None, None)


@given(st.integers(2, 12))
@settings(deadline=None)
def test_every_pod_is_kept_by_one_where_nodes_differ(count):
    """A ring: nobody is kept twice and nobody not at all."""
    found = choose_partners([_held(rank, node=f"n{rank}") for rank in range(count)])
    assert sorted(found.values()) == sorted(found)


def test_one_step_at_a_time():
    """The next step is ordered when every pod has the one before."""
    ring = _ring(2)
    assert ring.due(None) == _s(1, 10)
    assert [holding.rank for holding in ring.order("pod-0").slots] == [1]
    ring.on_sealed(_s(1, 20), [_held(0, world=2), _held(1, world=2)])
    ring.on_finished("pod-0", ring.number, done=True)
    assert ring.order("pod-0") is None
    assert (ring.due(None), ring.replicated) == (_s(1, 10), None)
    ring.on_finished("pod-1", ring.number, done=True)
    assert ring.replicated == _s(1, 10)
    assert ring.due(None) == _s(1, 20)


def test_no_other_step_is_copied_while_one_is_persisted():
    """Two steps pinned at once would leave training no slot to save into."""
    ring = _ring(2)
    assert ring.due(_s(1, 5)) is None
    assert ring.due(_s(1, 10)) == _s(1, 10)


def test_a_step_that_cannot_be_copied_is_let_go():
    """It is not replicated and not tried for ever; the next one is."""
    ring = _ring(2)
    ring.due(None)
    ring.on_finished("pod-0", ring.number, done=False)
    ring.on_finished("pod-1", ring.number, done=True)
    assert (ring.replicated, ring.due(None)) == (None, None)
    ring.on_sealed(_s(1, 20), [_held(0), _held(1)])
    assert ring.due(None) == _s(1, 20)


def test_a_late_word_counts_for_nothing():
    """Of an order that is over, or of a round that is over."""
    ring = _ring(2)
    ring.due(None)
    ring.on_finished("pod-0", ring.number - 1, done=True)
    assert len(ring.order("pod-0").slots) == 1
    ring.restart()
    ring.on_finished("pod-0", ring.number, done=True)
    ring.on_finished("pod-1", ring.number, done=True)
    assert (ring.in_progress, ring.replicated) == (None, None)


def test_a_pod_that_is_alone_keeps_nothing_any_more():
    """It is told so once a round, and no step of it counts as copied."""
    ring = ReplicaPlacement()
    ring.on_sealed(_s(1, 10), [_held(rank, pod="a") for rank in range(9)])
    assert ring.due(None) == _s(1, 10)
    assert ring.order("a") == ReplicateOrder(ring.number)
    ring.on_finished("a", ring.number, done=True)
    ring.on_sealed(_s(1, 20), [_held(rank, pod="a") for rank in range(9)])
    assert (ring.due(None), ring.replicated) == (None, None)


def test_what_was_copied_in_another_round_counts_for_nothing():
    """The pod that had the copy may be gone, and the step may be given up."""
    ring = _ring(2)
    ring.due(None)
    for pod in ("pod-0", "pod-1"):
        ring.on_finished(pod, ring.number, done=True)
    assert ring.replicated == _s(1, 10)
    ring.restart()
    assert ring.replicated is None


def _kept() -> ReplicaPlacement:
    ring = ReplicaPlacement(keeper="ps")
    ring.on_sealed(_s(1, 10), [_held(0, world=1)])
    return ring


def test_a_keeper_copies_what_a_single_pod_has():
    """All of the newest step, and the world's own pod nothing; a step of which no slot is known is
    not ordered."""
    ring = _kept()
    assert ring.due(None) == _s(1, 10)
    assert ring.order("ps").slots == (_held(0, world=1),)
    assert ring.order("pod-0") is None
    ring.on_finished("ps", ring.number, done=True)
    assert (ring.in_progress, ring.replicated) == (None, _s(1, 10))
    empty = ReplicaPlacement(keeper="ps")
    empty.on_sealed(_s(1, 10), [])
    assert empty.due(None) is None


def test_a_keeper_that_begins_anew_is_told_again():
    """It may have lost its copy; while it copies, the order stands."""
    ring = _kept()
    ring.due(None)
    number = ring.number
    ring.copy_again()
    ring.due(None)
    assert ring.number == number
    ring.on_finished("ps", number, done=True)
    assert ring.due(None) is None
    ring.copy_again()
    assert ring.due(None) == _s(1, 10)
    assert ring.order("ps").number == number + 1


def test_a_keeper_is_not_waited_for_for_ever():
    """It may be lost: after its time nothing is held up by its order, and a newer step is ordered
    when it asks again; what it tells of the old one counts for nothing."""
    ring = _kept()
    last = COPY_TIMEOUT_SECONDS + 1 / MIN_KEEPER_RATE
    assert ring.due(None, now=100.0) == _s(1, 10)
    assert ring.copying(100.0 + last - 0.001) == _s(1, 10)
    assert ring.copying(100.0 + last) is None
    number = ring.number
    assert ring.due(None, now=100.0 + last) is None
    ring.on_finished("ps", number, done=True)
    assert ring.replicated is None
    ring.on_sealed(_s(1, 20), [_held(0)])
    assert ring.due(None, now=200.0) == _s(1, 20)


def test_pods_of_the_world_are_waited_for():
    """One that is lost ends the round, and with it its order."""
    ring = _ring(2)
    assert ring.due(None, now=1.0) == _s(1, 10)
    assert ring.due(None, now=1e9) == ring.copying(1e9) == _s(1, 10)
