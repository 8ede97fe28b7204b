# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which steps never come to storage, and when that ends a job."""

from __future__ import annotations

import asyncio

import pytest

from rover_kf.api.checkpoints import PersistAborted, PodEnded, RankPersisted, SlotSealed
from rover_kf.api.membership import Member, Round
from rover_kf.checkpoint.storage.factory import open_storage
from rover_kf.coordinator.commit.committer import Committer
from rover_kf.coordinator.commit.sealed_steps import SealedSteps
from rover_kf.coordinator.commit.undurable import OverduePersist, UndurableState
from tests.support.pods import checkpoint_pod
from tests.support.states import identities


@pytest.fixture
def committer(tmp_path) -> Committer:
    """Of a job of two ranks, in its first round."""
    settings = checkpoint_pod.settings_of(tmp_path)
    storage = open_storage(str(tmp_path / "pvc"), settings.job)
    made = Committer(settings, checkpoint_pod.Told(), storage, lambda _: None)
    made.begin_round(identities.round_id(1))
    return made


def _seals(*saved: tuple[int, int]) -> SealedSteps:
    """An account of those ranks' saves of those steps."""
    account = SealedSteps()
    for rank, step in saved:
        account.add(
            SlotSealed(
                local_rank=0,
                rank=rank,
                world_size=2,
                round=identities.round_id(1),
                state=identities.state(step),
                slot=0,
                snapshot_bytes=1,
                replicated=True,
            )
        )
    return account


MEMBERS = tuple(Member(f"demo-worker-{rank}", "i", rank, 1) for rank in (0, 1))
ROUND = Round(1, MEMBERS, 2, "host", 1)


def _left(rank: int, step: int) -> PodEnded:
    return PodEnded(f"demo-worker-{rank}", {"0": identities.state(step)} if step else {})


def test_what_a_rank_has_not_saved_fails_the_job_after_its_end(committer):
    """Not before, and not until the rank's pod has said that it has no such step."""
    found = UndurableState(_seals((0, 1), (1, 1), (0, 2)), committer)
    found.on_round_started(ROUND)
    found.pod_ended(_left(0, 2))
    assert found.reason(identities.state(2)) == ""
    found.on_job_ended()
    assert found.reason(identities.state(2)) == found.verdict == ""
    found.pod_ended(_left(1, 2))  # the news of its save is behind
    assert found.reason(identities.state(2)) == found.verdict == ""
    found.pod_ended(_left(1, 1))
    assert found.reason(identities.state(1)) == found.verdict == ""
    why = found.reason(identities.state(2))
    assert "ranks [1] have not saved it; every rank has to" in why
    assert found.verdict == why


def test_what_pods_had_in_another_round_is_not_judged_by(committer):
    """A pod that was told to end, whose successor trains."""
    found = UndurableState(_seals((0, 2)), committer)
    found.pod_ended(_left(1, 0))
    found.on_round_started(ROUND)
    found.on_job_ended()
    assert found.reason(identities.state(2)) == found.verdict == ""


def test_a_coordinator_that_was_not_there_does_not_judge_who_saved(committer):
    """The rank may have told its predecessor, and its pod may be gone: a restart helps."""
    found = UndurableState(_seals((0, 2)), committer)
    found.on_round_started(None)
    found.pod_ended(_left(1, 0))
    found.on_job_ended()
    assert found.reason(identities.state(2)) == found.verdict == ""


def test_states_that_do_not_go_together_fail_the_job_at_its_end(committer):
    """While it trains the next states may be alike again; the newest one decides."""
    found = UndurableState(_seals(), committer)
    for rank in (0, 1):
        told = RankPersisted(
            f"demo-worker-{rank}", rank, 2, identities.state(5), identities.state(5),
            replicated=True, file=f"rank-{rank:05d}.safetensors", file_bytes=1, checksum=1,
            replicated_crc=rank,
        )  # fmt: skip
        asyncio.run(committer.on_rank_durable(told))
    assert "step 5 does not come to storage" in found.reason(identities.state(5))
    assert found.reason(identities.state(6)) == found.verdict == ""
    found.on_job_ended()
    assert found.reason(identities.state(6)) == found.verdict == ""
    assert found.reason(identities.state(5)) == found.verdict != ""


def test_attempts_that_are_given_up_for_long_are_reported_once():
    """With the reason; again only after a commit. Three paces of the policy are long."""
    overdue = OverduePersist(persist_seconds=30.0)
    aborted = PersistAborted("demo-worker-0", 1, identities.state(7), "newer ones replaced it")
    assert [bool(overdue.on_aborted(aborted, now)) for now in (5.0, 50.0, 94.9)] == [False] * 3
    message = overdue.on_aborted(aborted, 95.0)
    assert "no step has become durable for 90 s: 4 attempts" in message
    assert "step 7 of round 1 by rank 1: newer ones replaced it" in message
    assert overdue.on_aborted(aborted, 500.0) == ""
    overdue.on_committed()
    assert overdue.on_aborted(aborted, 600.0) == ""
    assert "for 100 s: 2 attempts" in overdue.on_aborted(aborted, 700.0)
