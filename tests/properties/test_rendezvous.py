# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The rendezvous under every fault that messages and processes can have, in simulated time."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from rover_kf.api.policy import FailurePolicy
from rover_kf.elastic.rendezvous import persisted_state
from rover_kf.elastic.rendezvous.rendezvous_limits import RendezvousLimits
from tests.support.simulated.launchers import SimulatedJob

PODS = 4
ranks = st.integers(min_value=0, max_value=PODS - 1)


class Faults(RuleBasedStateMachine):
    """Whatever happens, in whatever order: once it stops, one world trains.

    Checked at every formation by the simulation: no number names two rounds, ranks follow the
    node order, the size is within its bounds.
    """

    @initialize(
        min_nodes=st.integers(1, 3),
        nodes=st.integers(1, PODS),
        back_off=st.sampled_from([0.0, 2.0]),
    )
    def begin(self, min_nodes: int, nodes: int, back_off: float) -> None:
        nodes = max(nodes, min_nodes)
        limits = RendezvousLimits(
            nodes=nodes,
            min_nodes=min_nodes,
            max_nodes=PODS,
            failures=FailurePolicy(restarts=10_000, max_backoff=back_off),
        )
        self.job = SimulatedJob(limits, PODS)
        for launcher in self.job.launchers[:nodes]:
            launcher.start()

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.5, 1.0, 4.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.job.advance(seconds)

    @rule(lost=st.booleans(), times=st.integers(1, 3), rank=ranks, late=st.booleans())
    def request(self, rank: int, times: int, *, lost: bool, late: bool) -> None:
        self.job.send(self.job.launchers[rank], lost=lost, times=times, late=late)

    @rule(number=st.integers(0, 20))
    def late_request_arrives(self, number: int) -> None:
        self.job.arrive(number)

    @rule(rounds=st.integers(1, 30))
    def all_is_well(self, rounds: int) -> None:
        for _ in range(rounds):
            for launcher in self.job.launchers:
                self.job.send(launcher)
            self.job.advance(0.1)

    @rule(rank=ranks, noticed=st.booleans())
    def connection_breaks(self, rank: int, *, noticed: bool) -> None:
        self.job.disconnect(self.job.launchers[rank], noticed=noticed)

    @rule(rank=ranks, noticed=st.booleans())
    def launcher_dies(self, rank: int, *, noticed: bool) -> None:
        self.job.kill(self.job.launchers[rank], noticed=noticed)

    @rule(rank=ranks)
    def launcher_starts(self, rank: int) -> None:
        if not self.job.launchers[rank].alive:
            self.job.launchers[rank].start()

    @rule(rank=ranks)
    def process_dies(self, rank: int) -> None:
        self.job.kill_process(self.job.launchers[rank])

    @rule(rank=ranks)
    def launcher_leaves(self, rank: int) -> None:
        self.job.leave(self.job.launchers[rank])

    @rule(rank=ranks)
    def pod_is_told_to_end(self, rank: int) -> None:
        self.job.ask_to_leave(self.job.launchers[rank])

    @rule()
    def coordinator_dies(self) -> None:
        self.job.restart_coordinator()

    @rule()
    def coordinator_goes_on_in_its_pod(self) -> None:
        self.job.restart_from(persisted_state.export(self.job.rendezvous), runs=True)

    @rule()
    def pod_fetches_a_copy(self) -> None:
        self.job.copy()

    @rule(number=st.integers(0, 20))
    def coordinator_goes_on_from_a_copy(self, number: int) -> None:
        if self.job.copies:
            told = self.job.copies[number % len(self.job.copies)]
            self.job.restart_from(told, runs=False)

    @rule(nodes=st.integers(1, PODS))
    def controller_scales(self, nodes: int) -> None:
        limits = self.job.limits
        if limits.min_nodes <= nodes <= limits.max_nodes:
            self.job.apply(self.job.rendezvous.scale(nodes, "asked", self.job.now))

    @rule(excused=st.sets(ranks))
    def controller_excuses(self, excused: set[int]) -> None:
        self.job.apply(self.job.rendezvous.mark_unavailable(excused, "no node", self.job.now))

    def teardown(self) -> None:
        if not hasattr(self, "job"):
            return
        job = self.job
        while job.in_flight:
            job.arrive(len(job.in_flight) - 1)
        # The operator's part: the pods that the coordinator expects exist.
        for launcher in job.launchers:
            if launcher.leaving:
                job.leave(launcher)  # its patience ends
        while sum(one.alive for one in job.launchers) < job.limits.min_nodes:
            next(one for one in job.launchers if not one.alive).start()
        for _ in range(400):
            for launcher in job.launchers:
                job.send(launcher)
            job.advance(0.1)
        expected = job.rendezvous.world.expected
        present = [one for one in job.launchers if one.alive and one.rank < expected]
        if len(present) < job.limits.min_nodes:
            return  # fewer than may train: the others idle until the controller acts
        worlds = {one.world.number if one.world else None for one in present}
        assert len(worlds) == 1, f"no one world: {job.describe()}"
        assert None not in worlds, f"nobody trains: {job.describe()}"
        world = present[0].world
        assert world is not None
        assert [member.node_rank for member in world.members] == [one.rank for one in present]
        assert not any(one.broken for one in present)


Faults.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestFaults = Faults.TestCase
