# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What failures cost: budgets of all and of single kinds, and time between failures in a row."""

from __future__ import annotations

import dataclasses

import pytest

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.coordinator_state import RendezvousState
from rover_kf.api.faults import failure_kinds
from rover_kf.api.policy import FailurePolicy
from rover_kf.elastic.failures import processes
from rover_kf.elastic.rendezvous import persisted_state
from rover_kf.elastic.rendezvous.effects import Effect, EmitEvent
from rover_kf.elastic.rendezvous.rendezvous_limits import RendezvousLimits
from rover_kf.elastic.rendezvous.restart_budget import RestartBudget
from tests.support.simulated.launchers import SimulatedJob

FAILURES = FailurePolicy(restarts=100, max_backoff=5.0)
LIMITS = RendezvousLimits(nodes=2, min_nodes=2, max_nodes=2, failures=FAILURES)


class Noted(SimulatedJob):
    """A job that keeps what was told."""

    def __init__(self, limits: RendezvousLimits) -> None:
        self.told: list[EmitEvent] = []
        super().__init__(limits, 2)
        for launcher in self.launchers:
            launcher.start()

    def apply(self, effects: tuple[Effect, ...]) -> None:
        self.told += [effect for effect in effects if isinstance(effect, EmitEvent)]
        super().apply(effects)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 20)):
            for launcher in self.launchers:
                self.send(launcher)
            self.advance(0.05)

    def fail(self, kind: str = "crashed") -> float:
        """Rank 1 dies as soon as it can; seconds until all train again."""
        culprit = self.launchers[1]
        self.kill_process(culprit, counts=True, kind=kind)
        self.disconnect(culprit, noticed=True)
        began = self.now
        self.send(culprit)
        for _ in range(2000):
            if self.rendezvous.world.closed or all(
                one.world and not one.broken for one in self.launchers
            ):
                return self.now - began
            self.run(0.05)
        raise AssertionError(self.describe())

    def messages(self, reason: str) -> list[str]:
        return [told.message for told in self.told if told.reason == reason]


def test_each_kind_has_its_own_budget():
    """The total holds for all of them, a kind's for its own; which one is spent is said."""
    budget = RestartBudget(3, (("disk_full", 1), ("exited", 0)))
    for number, kind in enumerate(("disk_full", "crashed", "crashed"), 1):
        budget = budget.consume(number, kind).consume(number, kind)
        assert budget.exceeded_reason == ""
    assert budget.consume(4, "crashed").exceeded_reason == "the budget of 3 restarts is spent"
    full = "the budget of 1 restarts for disk_full is spent"
    assert budget.consume(3, "disk_full").exceeded_reason == full
    assert "0 restarts for exited" in budget.consume(3, "exited").exceeded_reason


def test_budgets_are_read_or_refused():
    """As a policy states them; what could not be meant is refused with what may be."""
    assert failure_kinds.parse_budgets("") == ()
    assert failure_kinds.parse_budgets("hang:2, crashed:0") == (("crashed", 0), ("hang", 2))
    for text, why in (
        ("disk:3", "known: collective_timeout"),
        ("peer_lost", "peer_lost:3"),
        ("crashed:-1", "restarts are needed"),
        ("crashed:1,crashed:2", "stated twice"),
        ("crashed:1,", "is no kind"),
        ("crashed:9999999", "restarts are needed"),
    ):
        with pytest.raises(errors.InputError, match=why):
            failure_kinds.parse_budgets(text)


def test_every_kind_that_spends_can_be_named():
    """Those of the catalogue's rules that are not free, and hangs."""
    spending = {rule.kind for rule in processes.RULES if rule.consumes_budget}
    assert spending | {failure_kinds.HANG} == failure_kinds.BUDGETED_KINDS


def test_a_kind_ends_the_job():
    """The third disk that is full is one too many, whatever else may still be spent."""
    failures = FailurePolicy(restarts=100, restarts_by_kind="disk_full:2", max_backoff=0.0)
    job = Noted(dataclasses.replace(LIMITS, failures=failures))
    job.run(1)
    for kind in ("disk_full", "crashed", "disk_full", "crashed", "crashed"):
        job.fail(kind)
    assert job.rendezvous.world.closed is None
    job.fail("disk_full")
    closed = job.rendezvous.world.closed
    assert closed is not None
    assert closed.verdict.startswith(
        "the budget of 2 restarts for disk_full is spent; last: rank 1"
    )


def test_failures_in_a_row_are_given_time():
    """The first restart is made at once, then after 1, 2, 4 and 5 seconds, which is the longest;
    each wait is told with the last reason. A new step ends the row, and so does a minute."""
    job = Noted(LIMITS)
    job.run(3)
    waits = [job.fail() for _ in range(6)]
    assert [round(seconds) for seconds in waits] == [0, 1, 2, 4, 5, 5]
    delayed = job.messages(names.EVENT_BACK_OFF)
    assert len(delayed) == 5
    assert delayed[0].startswith(
        "the next round begins in 1 s at the earliest: 2 failures in a row"
    )
    assert "rank 1 in pod-1: crashed: " in delayed[-1]
    job.run(4)  # the rounds begin at step 0 here: so many steps are new
    assert round(job.fail()) == 0
    assert round(job.fail()) == 1
    job.rendezvous.world.progress.step = None
    job.advance(61)
    assert round(job.fail()) == 0


def test_nobody_counts_the_wait_as_pods_that_lack():
    """All are here: the job's seconds are those of a recovery, and no pod is looked for."""
    job = Noted(LIMITS)
    job.run(1)
    job.fail()
    culprit = job.launchers[1]
    job.kill_process(culprit, counts=True)
    job.disconnect(culprit, noticed=True)
    job.send(culprit)
    job.run(0.5)
    world = job.rendezvous.world
    assert (world.active, world.lacks_pods, world.missing_ranks) == (False, False, ())
    job.run(1)
    assert world.active


def test_a_row_outlives_its_coordinator():
    """The next one waits as long again, and a copy that is older than what it knows changes
    nothing; nor does the same once more. A round that runs is not waited for."""
    job = Noted(LIMITS)
    job.run(3)
    early = persisted_state.export(job.rendezvous)
    for _ in range(3):
        job.fail()
    running = persisted_state.export(job.rendezvous)
    culprit = job.launchers[1]
    job.kill_process(culprit, counts=True)
    job.disconnect(culprit, noticed=True)
    job.send(culprit)
    told = persisted_state.export(job.rendezvous)
    assert codec.loads(RendezvousState, codec.dumps(told)) == told
    assert (told.streak.length, told.spent_kinds, told.round) == (4, ("crashed",) * 4, None)

    job.restart_from(told, runs=True)
    world, restarts = job.rendezvous.world, job.rendezvous.failure_policy.restart_limiter
    assert (restarts.streak, world.not_before) == (told.streak, job.now + 4)
    job.run(1)
    for copy in (early, told):
        job.apply(persisted_state.restore(job.rendezvous, copy, job.now, is_running=False))
    assert (restarts.streak, world.not_before - job.now) == (told.streak, pytest.approx(3.0))
    assert not world.active
    job.run(4)
    assert world.active

    job.restart_from(running, runs=True)
    assert (job.rendezvous.world.active, job.rendezvous.world.not_before) == (True, 0.0)


def test_what_an_older_coordinator_kept_is_read():
    """It knew neither kinds nor rows."""
    kept = codec.loads(
        RendezvousState, b'{"number":4,"expected":2,"spent_rounds":[1,3],"failures":2}'
    )
    job = Noted(dataclasses.replace(LIMITS, failures=FailurePolicy(restarts=1, max_backoff=5.0)))
    job.apply(persisted_state.restore(job.rendezvous, kept, job.now, is_running=False))
    restarts = job.rendezvous.failure_policy.restart_limiter
    assert (restarts.budget.spent, restarts.streak.length) == ({1: "", 3: ""}, 0)


def test_a_round_says_what_ended_the_one_before():
    """Kind, pod and rank of what failed are in the Event of the world that follows; a launcher
    that starts anew before anybody missed it is told of, too."""
    job = Noted(LIMITS)
    job.run(1)
    job.fail()
    first, second = job.messages(names.EVENT_WORLD_FORMED)
    assert first == "round 1: 2 processes in 2 pods"
    ended = "the one before ended: rank 1 in pod-1: crashed: a peer was lost"
    assert second == f"round 2: 2 processes in 2 pods; {ended}"
    launcher = job.launchers[1]
    job.disconnect(launcher, noticed=False)
    launcher.start()
    job.run(3)
    (lost,) = job.messages(names.EVENT_MEMBER_LOST)
    assert lost == "pod-1 (rank 1) was lost: its launcher started anew"
    assert job.messages(names.EVENT_WORLD_FORMED)[-1].endswith(f"ended: {lost}")


def test_a_replaced_coordinator_tells_of_the_pod_that_was_lost_with_it():
    """A copy of its state comes from another pod: then the first pod is a new one. Told once,
    whoever else has a copy, and not by a coordinator that goes on in its own pod."""
    job = Noted(LIMITS)
    job.run(1)
    told = persisted_state.export(job.rendezvous)
    job.restart_from(told, runs=True)
    assert job.messages(names.EVENT_MEMBER_LOST) == []
    for launcher in job.launchers:
        launcher.world = None
    job.restart_from(told, runs=False)
    job.apply(persisted_state.restore(job.rendezvous, told, job.now, is_running=False))
    job.run(1)
    (lost,) = job.messages(names.EVENT_MEMBER_LOST)
    assert lost.startswith("pod-0 (rank 0) was lost: another pod took its place")
    assert job.messages(names.EVENT_WORLD_FORMED)[-1].endswith(f"the one before ended: {lost}")
