# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The budget of restarts: reports are lost, doubled and reordered, coordinators are killed.

What a failure costs is counted once a round, whoever tells of it and however often; nothing that
was spent comes back; the job ends with the first failure beyond the budget, and stays so.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rover_kf.api.policy import FailurePolicy
from rover_kf.elastic.rendezvous import persisted_state
from rover_kf.elastic.rendezvous.rendezvous_limits import RendezvousLimits
from tests.support.simulated.launchers import SimulatedJob

PODS = 3
KINDS = ("crashed", "disk_full", "error")
ranks = st.integers(0, PODS - 1)
few = st.integers(0, 3)


class Budgets(RuleBasedStateMachine):
    """Processes die, of their own accord or with others; nothing is forgotten."""

    @initialize(
        allowed=few,
        by_kind=st.dictionaries(st.sampled_from(KINDS), few, max_size=2),
        shut_out=st.sampled_from([0.0, 1.0]),
        back_off=st.sampled_from([0.0, 3.0]),
    )
    def begin(
        self, allowed: int, by_kind: dict[str, int], shut_out: float, back_off: float
    ) -> None:
        limits = RendezvousLimits(
            nodes=PODS,
            min_nodes=1,
            max_nodes=PODS,
            failures=FailurePolicy(
                restarts=allowed,
                restarts_by_kind=",".join(f"{kind}:{most}" for kind, most in by_kind.items()),
                max_backoff=back_off,
            ),
            exclusion_seconds=shut_out,
        )
        self.job = SimulatedJob(limits, PODS)
        self.spent: set[int] = set()
        self.row = 0
        """Round that the last failure in a row has ended."""
        self.guilty: set[int] = set()
        """Rounds in which a process has died of its own accord."""
        for launcher in self.job.launchers:
            launcher.start()
            self.job.send(launcher)

    @rule(rank=ranks, kind=st.sampled_from(KINDS))
    def process_dies(self, rank: int, kind: str) -> None:
        launcher = self.job.launchers[rank]
        if launcher.world:
            self.guilty.add(launcher.world.number)
        self.job.kill_process(launcher, counts=True, kind=kind)

    @rule(rank=ranks, lost=st.booleans(), times=st.integers(1, 3), late=st.booleans())
    def request(self, rank: int, times: int, *, lost: bool, late: bool) -> None:
        self.job.disconnect(self.job.launchers[rank], noticed=True)
        self.job.send(self.job.launchers[rank], lost=lost, times=times, late=late)

    @rule(number=st.integers(0, 9))
    def late_request_arrives(self, number: int) -> None:
        self.job.arrive(number)

    @rule(rounds=st.integers(1, 30))
    def all_is_well(self, rounds: int) -> None:
        for _ in range(rounds):
            for launcher in self.job.launchers:
                self.job.send(launcher)
            self.job.advance(0.1)

    @rule()
    def coordinator_is_killed(self) -> None:
        self.job.restart_from(persisted_state.export(self.job.rendezvous), runs=True)

    @rule(number=st.integers(0, 9))
    def an_older_copy_comes_late(self, number: int) -> None:
        job = self.job
        if job.copies:
            told = job.copies[number % len(job.copies)]
            job.apply(persisted_state.restore(job.rendezvous, told, job.now, is_running=False))
        job.copy()

    @invariant()
    def nothing_comes_back(self) -> None:
        if not hasattr(self, "job"):
            return
        restarts, world = (
            self.job.rendezvous.failure_policy.restart_limiter,
            self.job.rendezvous.world,
        )
        spent = set(restarts.budget.spent)
        assert spent >= self.spent
        assert spent <= set(self.job.rounds), "a round that never was has cost something"
        assert bool(restarts.budget.exceeded_reason) == (world.closed is not None)
        assert restarts.streak.round >= self.row, "an older row of failures has come back"
        assert world.not_before <= self.job.now + self.job.limits.failures.max_backoff
        self.spent, self.row = spent, restarts.streak.round

    def teardown(self) -> None:
        if not hasattr(self, "job"):
            return
        while self.job.in_flight:
            self.job.arrive(0)
        self.all_is_well(rounds=3)
        self.job.advance(60.0)  # a pod that is kept out may join again
        self.all_is_well(rounds=300)
        world = self.job.rendezvous.world
        assert world.closed or len({one.world for one in self.job.launchers}) == 1
        # A round that broke before its first step may cost one as well, by nobody's fault.
        assert len(self.spent) <= self.job.limits.failures.restarts + 1
        assert self.guilty or not world.closed


Budgets.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestBudgets = Budgets.TestCase
