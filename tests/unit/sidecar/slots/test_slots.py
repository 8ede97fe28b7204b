# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Slots are made while others are given back, by threads that know nothing of each other."""

from __future__ import annotations

import concurrent.futures
import pathlib

import pytest

from rover_kf.api.checkpoints import ArenaRequest
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.sidecar.slots.slots import PodSlots
from tests.support.pods import checkpoint_pod
from tests.support.states import identities

PAGES = 8 << 12
ROUNDS = 300


@pytest.fixture
def slots(tmp_path):
    return PodSlots(checkpoint_pod.settings_of(tmp_path))


def test_a_rank_gets_its_slots_while_a_replica_is_given_back(slots, monkeypatch):
    """What goes between two looks is not counted, and is no error."""
    slots.allocate_replica(7, PAGES)
    lstat = pathlib.Path.lstat

    def given_back_first(path):
        slots.release_replicas(frozenset())
        return lstat(path)

    with monkeypatch.context() as patched:
        patched.setattr(pathlib.Path, "lstat", given_back_first)
        assert slots.allocate(ArenaRequest(0, PAGES)).slot_bytes >= PAGES
    assert slots.replicas() == ()
    assert slots.local_ranks() == (0,)


def test_a_replica_that_is_given_back_while_it_is_looked_at_is_none(slots, monkeypatch):
    """A restore asks what a pod holds as the coordinator's word comes to keep something else."""
    with slots.allocate_replica(7, PAGES).fill(only=0) as filling:
        filling.seal(state=identities.state(1), length=64, rank=7, world_size=8, replicated=False)
    pin = Arena.pin

    def given_back_first(arena, seal):
        slots.release_replicas(frozenset())
        return pin(arena, seal)

    with monkeypatch.context() as patched:
        patched.setattr(Arena, "pin", given_back_first)
        assert slots.holdings("replica-7") == ((), ())


def test_two_that_give_back_the_same_do_not_meet_in_an_error(slots):
    """The one that is second finds nothing to do."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for _ in range(ROUNDS):
            slots.allocate_replica(7, PAGES)
            both = [pool.submit(slots.release_replicas, frozenset()) for _ in range(2)]
            for one in both:
                one.result(timeout=60)
            assert slots.replicas() == ()
