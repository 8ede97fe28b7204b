# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The rendezvous in plain stories; the faults are in tests/properties."""

from __future__ import annotations

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.membership import Failure, FinishRequest, JoinReply, JoinRequest, WatchRequest
from rover_kf.api.policy import FailurePolicy
from rover_kf.elastic.rendezvous import persisted_state
from rover_kf.elastic.rendezvous.effects import (
    Effect,
    EmitEvent,
    JobClosed,
    RoundStarted,
    SendReply,
)
from rover_kf.elastic.rendezvous.rendezvous import Rendezvous
from rover_kf.elastic.rendezvous.rendezvous_limits import RendezvousLimits
from tests.support.simulated.launchers import SimulatedJob, SimulatedLauncher


def make(
    nodes: int, *, min_nodes: int = 1, restarts: int = 3, sizes: tuple[int, ...] = ()
) -> SimulatedJob:
    limits = RendezvousLimits(
        nodes=nodes,
        min_nodes=min_nodes,
        max_nodes=4,
        sizes=sizes,
        failures=FailurePolicy(restarts=restarts, max_backoff=0.0),
    )
    return SimulatedJob(limits, 4)


def run(job: SimulatedJob, seconds: float) -> None:
    for _ in range(round(seconds * 20)):
        for launcher in job.launchers:
            job.send(launcher)
        job.advance(0.05)


def test_forms_at_once():
    """When the last expected member joins, the round starts without waiting."""
    job = make(3)
    for launcher in job.launchers[:3]:
        launcher.start()
        job.send(launcher)
    assert job.rendezvous.world.round_number == 1
    assert all(launcher.world for launcher in job.launchers[:3])


def test_a_world_that_lost_a_server_begins_anew():
    """The same members, the next round; no restart of the budget is spent for it."""
    job = make(3, restarts=0)
    for launcher in job.launchers[:3]:
        launcher.start()
        job.send(launcher)
    job.apply(job.rendezvous.restart_round("a server is gone", job.now))
    run(job, 2)
    assert job.rendezvous.world.round_number == 2
    assert len(job.rounds[2].members) == 3
    assert job.rendezvous.world.closed is None


def test_starts_with_fewer_after_patience():
    """Pods that never come are waited for only so long, if the fewest allowed are there."""
    job = make(3, min_nodes=2)
    for launcher in job.launchers[:2]:
        launcher.start()
    run(job, 10)
    assert job.rendezvous.world.round is None
    run(job, 6)
    assert len(job.rounds[1].members) == 2


def test_only_allowed_sizes_train():
    """Whoever would make no such size waits, and no drain is spent on it; with a fourth all train.
    A member that goes is replaced by the one that waits, without patience."""
    job = make(3, sizes=(2, 4))
    for launcher in job.launchers[:3]:
        launcher.start()
    run(job, 5)
    assert [len(found.members) for found in job.rounds.values()] == [2]
    job.launchers[3].start()
    run(job, 5)
    assert [len(found.members) for found in job.rounds.values()] == [2, 4]
    job.kill(job.launchers[1], noticed=True)
    run(job, 2)
    assert [len(found.members) for found in job.rounds.values()] == [2, 4, 2]
    with pytest.raises(errors.InputError, match="may have 2, 4"):
        job.rendezvous.scale(3, "", job.now)


def test_a_pod_that_cannot_come_is_not_waited_for():
    """Those present start at once when the third is said to be unable to come; told once. It is a
    newcomer when it comes. Nobody is excused below the fewest, nor while a round runs."""
    job = make(3, min_nodes=2)
    job.launchers[0].start()
    run(job, 1)
    rendezvous = job.rendezvous
    assert rendezvous.world.missing_ranks == (1, 2)
    told = rendezvous.mark_unavailable([2], "train-worker-2: no node", job.now)
    assert [one.message for one in told if isinstance(one, EmitEvent)] == [
        "not waited for until it comes: train-worker-2: no node"
    ]
    assert rendezvous.mark_unavailable([2], "train-worker-2: no node", job.now) == ()
    assert rendezvous.world.round is None
    job.launchers[1].start()
    run(job, 0.2)
    assert [member.node_rank for member in job.rounds[1].members] == [0, 1]
    assert rendezvous.world.missing_ranks == ()
    assert rendezvous.mark_unavailable([0, 1, 2], "they train", job.now) == ()
    job.launchers[2].start()
    run(job, 2)
    assert [member.node_rank for member in job.rounds[2].members] == [0, 1, 2]
    assert rendezvous.failure_policy.failures == 0


def test_newcomer_drains_the_world():
    """A newcomer costs no step: the others stop together at a step to come."""
    job = make(2)
    job.launchers[0].start()
    job.launchers[1].start()
    run(job, 2)
    job.launchers[2].start()
    run(job, 2)
    assert [member.node_rank for member in job.rounds[2].members] == [0, 1, 2]
    assert job.rendezvous.failure_policy.failures == 0


def test_a_pod_that_ends_lets_the_world_drain():
    """SIGTERM costs no step: all save at one step, the pod goes, the others form without it."""
    job = make(3)
    for launcher in job.launchers[:3]:
        launcher.start()
    run(job, 2)
    leaver = job.launchers[1]
    job.ask_to_leave(leaver)
    run(job, 0.5)
    assert leaver.alive, "it waits for the step that all were told"
    run(job, 2)
    assert not leaver.alive
    assert [member.node_rank for member in job.rounds[2].members] == [0, 2]
    assert job.rendezvous.failure_policy.failures == 0
    assert not any(launcher.broken for launcher in job.launchers)


def test_all_pods_end_at_once():
    """A job that is deleted: every pod saves the same step and goes; no round is formed again."""
    job = make(3)
    for launcher in job.launchers[:3]:
        launcher.start()
    run(job, 2)
    for launcher in job.launchers[:3]:
        job.ask_to_leave(launcher)
    run(job, 3)
    assert not any(launcher.alive for launcher in job.launchers)
    assert len({launcher.step for launcher in job.launchers[:3]}) == 1
    assert (list(job.rounds), len(job.rendezvous.world.member_index)) == ([1], 0)


def test_a_new_coordinator_hears_that_a_pod_ends():
    """The wish to end is said with every watch: a coordinator that starts anew knows it, too."""
    job = make(2)
    job.launchers[0].start()
    job.launchers[1].start()
    run(job, 1)
    job.ask_to_leave(job.launchers[1])
    job.restart_coordinator()
    run(job, 4)
    assert not job.launchers[1].alive
    assert [member.node_rank for member in job.rounds[2].members] == [0]


def test_new_coordinator_adopts():
    """A coordinator that knows nothing takes over the round that runs, under its number."""
    job = make(2)
    job.launchers[0].start()
    job.launchers[1].start()
    run(job, 1)
    job.rendezvous = Rendezvous(job.limits)
    for launcher in job.launchers:
        launcher.ticket = None
    run(job, 5)
    world = job.rendezvous.world
    assert (world.active, world.round_number, list(job.rounds)) == (True, 1, [1])


def test_an_adopted_round_is_told():
    """Whoever counts steps hears of the round that a new coordinator took over, once."""
    job = make(2)
    job.launchers[0].start()
    job.launchers[1].start()
    run(job, 1)
    world = job.rounds[1]
    new = Rendezvous(job.limits)
    told = []
    for ticket, member in enumerate(world.members):
        asked = WatchRequest(member.pod, member.incarnation, 1, world=world)
        told += new.watch(asked, ticket, job.now)
    assert [effect for effect in told if isinstance(effect, RoundStarted)] == [
        RoundStarted(world, adopted=True)
    ]


def test_a_job_that_has_ended_well_for_nothing_has_failed():
    """Its state never comes to storage: who joins again hears the verdict, and so does who goes on
    from this coordinator's memory."""
    job = make(1)
    job.launchers[0].start()
    run(job, 1)
    rendezvous, member = job.rendezvous, job.launchers[0].member
    assert rendezvous.fail_job("too early", job.now) == ()
    rendezvous.finish(FinishRequest(member.pod, member.incarnation, 1), 7, job.now)
    assert rendezvous.world.closed == JobClosed(0, "")
    before = persisted_state.fingerprint(rendezvous)
    told = rendezvous.fail_job("for nothing", job.now)
    assert JobClosed(1, "for nothing") in told
    assert EmitEvent(names.EVENT_JOB_FAILED, "for nothing", warning=True) in told
    assert persisted_state.fingerprint(rendezvous) != before
    again = rendezvous.join(JoinRequest(member, "host", 1, 1), 8, job.now)
    assert again == (SendReply(8, JoinReply("closed", None, 1, "for nothing")),)
    assert rendezvous.fail_job("again", job.now) == ()


def test_scale_is_bounded():
    """A scale beyond the job's bounds is refused with the bounds."""
    with pytest.raises(errors.InputError, match="1 to 4"):
        make(2).rendezvous.scale(5, "", 0.0)


def report(
    job: SimulatedJob, launcher: SimulatedLauncher, kind: str, reason: str, **more: object
) -> tuple[Effect, ...]:
    """A launcher tells of a process that died in its last round, and will join again."""
    pod, incarnation, number = launcher.pod, launcher.member.incarnation, launcher.last_round
    action = str(more.pop("action", "restart"))
    failure = Failure(
        *(kind, "process", action, reason),
        pod=pod,
        incarnation=incarnation,
        round=number,
        rank=launcher.rank,
        exit_code=1,
        **more,
    )
    launcher.world, launcher.ticket = None, None
    return job.rendezvous.failure(failure, 0, job.now)


def training(nodes: int, *, step: int | None = None, restarts: int = 3) -> SimulatedJob:
    """A job whose first round runs, and has reported that step."""
    job = make(nodes, restarts=restarts)
    for launcher in job.launchers[:nodes]:
        launcher.start()
        job.send(launcher)
    if step is not None:
        job.rendezvous.observe(1, step, seconds=0.1, ended_at=job.now, now=job.now)
    return job


def reasons(effects: tuple[Effect, ...]) -> list[str]:
    return [effect.reason for effect in effects if isinstance(effect, EmitEvent)]


def test_a_cause_that_is_told_of_late():
    """The survivors of another rank's error report first: the error still ends the job."""
    job = training(3)
    first, second, third = job.launchers[:3]
    lost = {"consumes_budget": False, "consequence": True}
    assert reasons(report(job, first, "peer_lost", "lost", **lost)) == ["TrainingProcessFailed"]
    assert job.rendezvous.failure_policy.restart_limiter.budget.spent == {}
    assert reasons(report(job, second, "peer_lost", "lost", **lost)) == []
    effects = report(job, third, "user_error", "ImportError: nowhere", action="fail_job")
    assert reasons(effects) == ["TrainingProcessFailed", "TrainingFailed"]
    (closed,) = [effect for effect in effects if isinstance(effect, JobClosed)]
    assert closed.verdict == f"rank {third.rank} in {third.pod}: user_error: ImportError: nowhere"
    assert job.rendezvous.failure_policy.failures == 1


def test_a_rank_that_ends_early_costs_the_budget():
    """It has run out of data and ended with 0; the others fail for want of it, in every round."""
    job = training(2)
    first, second = job.launchers[:2]
    request = FinishRequest(second.pod, second.member.incarnation, 1)
    job.rendezvous.finish(request, 1000, job.now)
    lost = {"consumes_budget": False, "consequence": True}
    told = [
        one for one in report(job, first, "peer_lost", "lost", **lost) if isinstance(one, EmitEvent)
    ]
    assert told[0].message.startswith(f"{second.pod} (rank 1) ended with 0 while others ")
    assert job.rendezvous.failure_policy.restart_limiter.budget.spent == {1: "peer_lost"}


def test_a_later_cause_explains_nothing():
    """Of two causes the earlier one was told: the other came of what followed."""
    job = training(2)
    report(job, job.launchers[0], "crashed", "SIGSEGV", observed_at=100.0)
    assert reasons(report(job, job.launchers[1], "error", "confused", observed_at=102.0)) == []
    assert job.rendezvous.failure_policy.restart_limiter.budget.spent == {1: "crashed"}


def test_an_import_error_after_steps_is_tried_again():
    """What has worked for a step may work again; the same at the same place does not."""
    job = training(1, step=5)
    failing = {"action": "fail_job", "signature": "s"}
    assert "TrainingFailed" not in reasons(report(job, job.launchers[0], "e", "no", **failing))
    run(job, 0.05)
    number = job.rendezvous.world.round_number
    assert number == 2
    job.rendezvous.world.progress.observe(number, 5, seconds=0.1, ended_at=job.now)
    effects = report(job, job.launchers[0], "e", "no", **failing)
    (closed,) = [effect for effect in effects if isinstance(effect, JobClosed)]
    assert closed.verdict.startswith("the same error in the same place again")


@pytest.mark.parametrize(("there", "ends"), [(3, True), (2, False)])
def test_a_world_of_another_size_is_waited_for_while_pods_lack(there, ends):
    """No restart makes it: the job ends. With a pod away one may, and the budget is spent on it."""
    job = make(3, min_nodes=2)
    for launcher in job.launchers[:there]:
        launcher.start()
    run(job, 20)
    world = job.rendezvous.world
    world.progress.any_reported = False
    report(job, job.launchers[0], "wrong_world_size", "a world of 4", action="other_world")
    assert bool(world.closed) == ends
    assert job.rendezvous.failure_policy.restart_limiter.budget.spent == (
        {} if ends else {1: "wrong_world_size"}
    )


def test_a_world_that_has_trained_is_given_time_to_be_its_size_again():
    """Its pods or whoever scaled it may bring it back."""
    job = training(2, step=5)
    report(job, job.launchers[0], "wrong_world_size", "a world of 3", action="other_world")
    assert job.rendezvous.world.closed is None
    assert job.rendezvous.failure_policy.restart_limiter.budget.spent == {1: "wrong_world_size"}


def test_failures_count_once_a_round():
    """Two reports of one round spend the budget once; beyond it the job closes with the reason."""
    job = make(2, restarts=1)
    job.launchers[0].start()
    job.launchers[1].start()
    run(job, 1)
    closed = []
    for expected in (False, True):
        number = job.rendezvous.world.round_number
        for launcher in job.launchers[:2]:
            assert launcher.last_round == number
            effects = report(job, launcher, "error", "it broke")
            closed += [effect for effect in effects if isinstance(effect, JobClosed)]
        assert bool(closed) == expected
        run(job, 1)
    assert closed[0].exit_code == 1
    assert "it broke" in closed[0].verdict


def test_finish_is_a_barrier():
    """The first that finishes waits; with the last the job closes with 0 for all."""
    job = make(2)
    job.launchers[0].start()
    job.launchers[1].start()
    run(job, 1)
    replies = []
    for ticket, launcher in enumerate(job.launchers[:2], start=9000):
        request = FinishRequest(launcher.pod, launcher.member.incarnation, 1)
        effects = job.rendezvous.finish(request, ticket, job.now)
        replies.append(
            [e.reply.action for e in effects if isinstance(e, SendReply) and e.ticket >= 9000]
        )
    assert replies == [[], ["closed", "closed"]]


def fail(job: SimulatedJob, rank: int) -> None:
    """A process of that pod dies of its own accord, and all find together again."""
    run(job, 1)
    culprit = job.launchers[rank]
    job.kill_process(culprit, counts=True)
    job.disconnect(culprit, noticed=True)
    job.send(culprit)
    run(job, 2)


def test_a_pod_that_fails_again_and_again_pays_itself():
    """Its third failure in a row costs the job nothing, and the pod a minute without the others;
    back again its next one costs it two. The job's budget has spent the first two alone."""
    job = make(3, restarts=2)
    for launcher in job.launchers[:3]:
        launcher.start()
    for _ in range(3):
        fail(job, 1)
    steward = job.rendezvous.failure_policy
    assert (len(steward.restart_limiter.budget.spent), job.rendezvous.world.closed) == (2, None)
    newest = job.rounds[max(job.rounds)]
    assert [member.node_rank for member in newest.members] == [0, 2]
    run(job, 62)
    back = job.rounds[max(job.rounds)]
    assert [member.node_rank for member in back.members] == [0, 1, 2]
    fail(job, 1)
    run(job, 100)
    assert [one.node_rank for one in job.rounds[max(job.rounds)].members] == [0, 2]
    assert len(steward.restart_limiter.budget.spent) == 2


def test_who_pays_for_failures():
    """The job, where they are of several pods, where the others are too few, where they lie far
    apart, and where a second pod begins: then it is not the pod that is wrong."""
    several = make(3, restarts=20)
    few = make(2, min_nodes=2, restarts=20)
    apart = make(3, restarts=20)
    for job in (several, few, apart):
        for launcher in job.launchers[: job.limits.nodes]:
            launcher.start()
    for rank in (0, 1, 2, 0, 1, 2):
        fail(several, rank)
    for _ in range(4):
        fail(few, 1)
        fail(apart, 1)
        apart.advance(601)
    spent = [
        len(job.rendezvous.failure_policy.restart_limiter.budget.spent)
        for job in (several, few, apart)
    ]
    assert spent == [6, 4, 4]
    for _ in range(3):
        fail(several, 1)
    for _ in range(4):
        fail(several, 2)
    assert len(several.rendezvous.failure_policy.restart_limiter.budget.spent) == 6 + 2 + 4


def test_a_pod_that_is_kept_out_helps_when_it_is_needed():
    """Once the others are fewer than the fewest, it joins before its time."""
    job = make(3, min_nodes=2, restarts=10)
    for launcher in job.launchers[:3]:
        launcher.start()
    for _ in range(3):
        fail(job, 1)
    assert [one.node_rank for one in job.rounds[max(job.rounds)].members] == [0, 2]
    job.kill(job.launchers[2], noticed=True)
    run(job, 10)
    assert [one.node_rank for one in job.rounds[max(job.rounds)].members] == [0, 1]
