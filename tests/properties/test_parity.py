# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Parities of any group, of slots of any lengths, give back any one slot, bit by bit."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter

import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api.checkpoints import Holding, Lane, Parity
from rover_kf.api.replication import ParityMade
from rover_kf.checkpoint.parity import Layout
from rover_kf.checkpoint.rebuilding import rebuilds
from rover_kf.sidecar import parity_groups, xor
from rover_kf.sidecar.parity_verdicts import ParityVerdicts

LENGTHS = st.lists(st.integers(1, 300), min_size=2, max_size=9)


def _held(rank: int, world: int, *, pod: str = "", node: str = "", step: int = 7) -> Holding:
    return Holding(
        pod or f"pod-{rank}", f"10.0.0.{rank}:7411", 0, rank, world, step, replicated=False,
        snapshot_bytes=100 + rank, checksum=1000 * step + rank, round=1, node=node,
    )  # fmt: skip


def _parities(layout: Layout, slots: list[bytes]) -> list[bytes]:
    """What each pod holds."""
    found = []
    for holder in range(len(slots)):
        parity = memoryview(bytearray(b"?" * layout.width))
        xor.clear(parity)
        for number in layout.others(holder):
            span = layout.stripe(number, holder)
            xor.into(parity, slots[number][span.start : span.stop])
        found.append(bytes(parity))
    return found


@given(LENGTHS, st.integers(0, 99))
@settings(deadline=None)
def test_any_slot_comes_back(lengths, seed):
    """From the other slots and the parities of their pods alone; a parity is no larger than the
    largest slot's part, and the stripes' checksums make up the slot's."""
    layout = Layout(tuple(lengths))
    slots = [random.Random(seed + n).randbytes(length) for n, length in enumerate(lengths)]
    parities = _parities(layout, slots)
    assert {len(parity) for parity in parities} == {math.ceil(max(lengths) / (len(lengths) - 1))}
    for lost, slot in enumerate(slots):
        back = b""
        for holder in layout.holders(lost):
            mixed = memoryview(bytearray(parities[holder]))
            for number in layout.others(holder, lost):
                span = layout.stripe(number, holder)
                xor.into(mixed, slots[number][span.start : span.stop])
            size = len(layout.stripe(lost, holder))
            back += bytes(mixed[:size])
            assert not any(mixed[size:])
        assert back == slot
        spans = [layout.stripe(lost, holder) for holder in layout.others(lost)]
        sums = [0] * len(slots)
        for holder, span in zip(layout.others(lost), spans, strict=True):
            sums[holder] = crc32c.crc32c(slot[span.start : span.stop])
        assert layout.checksum(lost, sums) == crc32c.crc32c(slot)


@given(
    st.lists(st.sampled_from(["n1", "n2", "n3", ""]), min_size=1, max_size=24), st.integers(3, 8)
)
@settings(deadline=None)
def test_groups_are_as_large_as_was_counted_and_spread_over_nodes(nodes, size):
    """Every pod is in one group; none is smaller than the policy says if the world is not; a node's
    pods are shared out evenly."""
    by_pod = {f"pod-{number:02}": node for number, node in enumerate(nodes)}
    found = parity_groups.groups(by_pod, size)
    assert sorted(pod for group in found for pod in group) == sorted(by_pod)
    sizes = {len(group) for group in found}
    assert max(sizes) - min(sizes) <= 1
    assert min(len(nodes), size) <= min(sizes) <= max(sizes) < max(2 * size, 2)
    for group in found:
        assert list(group) == sorted(group)
        for node, count in Counter(by_pod[pod] for pod in group if by_pod[pod]).items():
            assert count <= math.ceil(nodes.count(node) / len(found))


@given(st.lists(st.integers(1, 3), min_size=2, max_size=8), st.integers(3, 4))
@settings(deadline=None)
def test_every_rank_is_in_a_lane_of_several_pods(ranks, size):
    """Also where pods have different numbers of ranks; each pod holds a parity of every lane that
    it is in, and of no other."""
    pods = [f"pod-{number}" for number, count in enumerate(ranks) for _ in range(count)]
    held = [_held(rank, len(pods), pod=pod) for rank, pod in enumerate(pods)]
    found = parity_groups.lanes(held, size)
    lanes = {lane for of_pod in found.values() for lane in of_pod}
    assert {member for lane in lanes for member in lane.members} == set(held)
    for lane in lanes:
        among = [member.pod for member in lane.members]
        assert len(set(among)) == len(among) >= 2
        assert set(among) == {pod for pod in found if lane in found[pod]}
    for of_pod in found.values():
        assert len({lane.number for lane in of_pod}) == len(of_pod)


@given(st.integers(2, 6), st.data())
@settings(deadline=None)
def test_one_slot_that_is_missing_is_brought_back_and_two_are_not(count, data):
    """Whoever is lost with its part; a part that another pod lost as well, or another state of the
    same step in place of a slot, is one too many."""
    lane = Lane(0, tuple(_held(rank, count) for rank in range(count)))
    parities = [Parity(_held(rank, count, pod=f"pod-{rank}"), 8, lane) for rank in range(count)]
    lost = data.draw(st.integers(0, count - 1))
    moved = [
        dataclasses.replace(member, address="elsewhere:1")
        for member in lane.members
        if member.rank != lost
    ]
    parts = [parity for parity in parities if parity.slot.rank != lost]
    (found,) = rebuilds(moved, parts)
    assert found.holding == lane.members[lost]
    assert [member for member in found.members if member != found.holding] == moved
    assert list(found.parities) == parts
    assert rebuilds(moved, parts[:-1]) == rebuilds(moved[:-1], parts) == ()
    other = dataclasses.replace(moved[-1], round=2)
    assert rebuilds([*moved[:-1], other], parts) == rebuilds(lane.members, parities) == ()


@given(LENGTHS, st.data())
@settings(deadline=None)
def test_what_was_read_of_another_state_is_never_sealed(lengths, data):
    """Nobody may before all have told; all may if every stripe is of the slot that was ordered; if
    one is not, or a pod could not make its own, none may."""
    count, layout = len(lengths), Layout(tuple(lengths))
    slots = [random.Random(n).randbytes(length) for n, length in enumerate(lengths)]
    lane = Lane(0, tuple(
        dataclasses.replace(
            _held(n, count), snapshot_bytes=len(slot), checksum=crc32c.crc32c(slot)
        )
        for n, slot in enumerate(slots)
    ))  # fmt: skip
    pods = [member.pod for member in lane.members]

    def told(holder: int, wrong: int = -1) -> ParityMade:
        sums = [0] * count
        for number in layout.others(holder):
            span = layout.stripe(number, holder)
            stripe = slots[number][span.start : span.stop]
            sums[number] = crc32c.crc32c(stripe) ^ (number == wrong)
        return ParityMade(pods[holder], 1, (tuple(sums),), 0.0)

    good, bad, gone = (ParityVerdicts(dict.fromkeys(pods, (lane,))) for _ in range(3))
    liar = data.draw(st.integers(0, count - 1))
    wrong = data.draw(st.sampled_from(layout.others(liar)))
    for holder, pod in enumerate(pods):
        assert not good.verdict(pod).known
        good.made(told(holder))
        bad.made(told(holder, wrong if holder == liar else -1))
        if holder == liar:
            gone.failed(pod, "no room")
        else:
            gone.made(told(holder))
    for pod in pods:
        assert (good.verdict(pod).known, good.verdict(pod).reason) == (True, "")
        assert f"of rank {wrong} has CRC-32C" in bad.verdict(pod).reason
        assert gone.verdict(pod).reason == f"{pods[liar]} has made none: no room"
        assert (bad.verdict(pod).told, gone.verdict(pod).told) == (False, True)
