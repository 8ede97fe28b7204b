# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""When the coordinator has nodes checked, and what becomes of what was found."""

from __future__ import annotations

import pytest

from rover_kf.api import names
from rover_kf.api.faults.node_check_messages import CheckRequest, CheckResult
from rover_kf.api.membership import Failure, Member
from rover_kf.api.policy import PreflightPolicy
from rover_kf.coordinator.fault_reports import FaultyNodes
from rover_kf.coordinator.preflight import PreflightRunner
from rover_kf.sidecar.event_log import EventLog


class Job:
    """Launchers that ask in turn and measure at once; ``slow`` pods take four times as long."""

    def __init__(self, mode):
        self.story, self.unfit, self.now = EventLog("train-worker-0"), FaultyNodes(), 100.0
        self.preflights = PreflightRunner(
            PreflightPolicy(mode=mode, timeout=5.0), self.story, self.unfit
        )
        self.slow = set()

    def come(self, *ranks, incarnation="a"):
        """Those pods ask until they may go; how many tasks each was given."""
        results, tasks, waiting = {}, dict.fromkeys(ranks, 0), set(ranks)
        while waiting:
            for rank in sorted(waiting):
                member = Member(f"pod-{rank}", incarnation, rank, 1, f"node-{rank}")
                request = CheckRequest(member, "here", rank, results.get(rank))
                reply = self.preflights.on_request(request, 2, now=self.now, timestamp=self.now)
                self.now += 0.01
                if reply.action == "go":
                    waiting.remove(rank)
                elif reply.task:
                    tasks[rank] += 1
                    results[rank] = self._result(rank, reply.task)
        return list(tasks.values())

    def train(self, *ranks, incarnation="a"):
        members = [Member(f"pod-{r}", incarnation, r, 1, f"node-{r}") for r in ranks]
        self.preflights.on_round_started(members)

    def told(self, reason):
        return [event.message for event in self.story.after(0) if event.reason == reason]

    def _result(self, rank, task):
        alone = (0.04 if rank in self.slow else 0.01) if task.alone else None
        together = 0.02 if task.world_size else None
        return CheckResult(task.check, task.round, "cpu", alone, together)


def test_off_checks_nobody():
    """And asks nothing."""
    assert Job("off").come(0, 1) == [0, 0]


@pytest.mark.parametrize("mode", ["report", "exclude"])
def test_a_check_before_training_and_after_broken_hardware(mode):
    """Not after other failures; a slow node is told, and unfit only where it is to be left."""
    job = Job(mode)
    job.slow.add(1)
    assert job.come(0, 1) == [1, 3]
    job.train(0, 1)
    assert job.come(0, 1) == [0, 0]
    (message,) = job.told(names.EVENT_NODE_CHECK_FAILED)
    assert message.startswith("pod-1 on node-1 is slow: a matmul takes 0.04 s")
    assert [one.node for one in job.unfit.nodes] == (["node-1"] if mode == "exclude" else [])
    seen = {"pod": "pod-0", "incarnation": "a", "round": 1, "rank": 0, "exit_code": 1}
    job.preflights.on_failure(Failure("error", "process", "restart", "", **seen))
    assert job.come(0, 1) == [0, 0]
    job.preflights.on_failure(Failure("gpu_hardware", "node", "replace_node", "", **seen))
    job.slow.clear()
    assert job.come(0, 1) == [1, 1]
    assert len(job.told(names.EVENT_PREFLIGHT)) == 2


def test_a_newcomer_is_measured_by_itself():
    """Once, beside what the others took; so is a container that was restarted, nobody else."""
    job = Job("exclude")
    job.come(0, 1)
    job.train(0, 1)
    job.slow.add(2)
    assert job.come(0, 1, 2) == [0, 0, 3]
    assert [one.node for one in job.unfit.nodes] == ["node-2"]
    job.train(0, 1, 2)
    assert job.come(0, 1, 2) == [0, 0, 0]
    assert job.come(0, incarnation="b") == [1]
    assert len(job.told(names.EVENT_NODE_CHECK_FAILED)) == 1
