# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the job's nodes at the coordinator: when one is due, and what is told of it.

One is due before the first round, and again after a failure that its node is to blame for. A pod
that comes later is measured by itself.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable

from rover_kf.api import names
from rover_kf.api.faults.node_check_messages import (
    FAULTY,
    SLOW,
    CheckReply,
    CheckRequest,
    NodeCheckReport,
    NodeVerdict,
)
from rover_kf.api.membership import Failure, Member
from rover_kf.api.policy import PreflightPolicy
from rover_kf.api.status import FaultyNode
from rover_kf.coordinator.fault_reports import FaultyNodes
from rover_kf.elastic.failures.rule import REPLACE_NODE
from rover_kf.elastic.node_check import check as checks
from rover_kf.elastic.node_check.check import CheckLimits, NodeCheck
from rover_kf.sidecar.event_log import EventLog

_log = logging.getLogger(__name__)

Launcher = tuple[str, str]
"""Pod and incarnation."""

OFF, EXCLUDE = "off", "exclude"
KIND = "preflight"
"""Of an unfit node that a check has found."""
MAX_PODS, MAX_EVENTS = 64, 16
"""Of a check that a status holds; of pods that are not well, with an Event each."""
VOUCH_SECONDS = 0.5
"""Between two words for pods that are being checked."""
RECHECK_SECONDS = 2.0
"""How long a check after a failure waits for further pods: the others could train meanwhile."""


class PreflightRunner:
    """One a coordinator.

    Args:
        policy: of the job.
        event_log: where checks are told of.
        faulty_nodes: where nodes go that the job shall leave.
    """

    def __init__(
        self, policy: PreflightPolicy, event_log: EventLog, faulty_nodes: FaultyNodes
    ) -> None:
        self._mode, self._event_log, self._faulty_nodes = policy.mode, event_log, faulty_nodes
        self._limits = CheckLimits(measure=policy.timeout)
        self._due = policy.mode != OFF
        self._check: NodeCheck | None = None
        self._late_checks: dict[Launcher, NodeCheck] = {}
        """Of pods that came later, each by itself."""
        self._passed: set[Launcher] = set()
        self._number = 0
        self._vouched_at = float("-inf")
        self.last: NodeCheckReport | None = None
        """The newest that has ended."""

    def on_request(
        self, request: CheckRequest, expected: int, *, now: float, timestamp: float
    ) -> CheckReply:
        """A launcher is about to join.

        Args:
            request: its own.
            expected: pods of the job.
            now: monotonic seconds.
            timestamp: Unix seconds.
        """
        if not self._due:
            return self._check_single(request, now=now, timestamp=timestamp)
        if self._check is None or self._check.result:
            self._check = NodeCheck(self._check_name(timestamp), expected, self._limits, now)
        answer = self._check.handle_request(request, now)
        self._conclude(timestamp)
        return answer

    def _check_single(self, request: CheckRequest, *, now: float, timestamp: float) -> CheckReply:
        """A pod comes that was in no check, and others are known to compare it with."""
        who = (request.member.pod, request.member.incarnation)
        if who in self._passed or self.last is None:
            return CheckReply("go")
        if who not in self._late_checks:
            self._late_checks[who] = NodeCheck(
                self._check_name(timestamp), 1, self._limits, now, previous=self.last.pods
            )
        check = self._late_checks[who]
        answer = check.handle_request(request, now)
        if check.result is not None:
            del self._late_checks[who]
            self._passed.add(who)
            for one in check.result.verdicts:
                if one.reason:
                    self._emit_verdict(one, timestamp)
        return answer

    def _check_name(self, timestamp: float) -> str:
        # The time tells a restarted coordinator's checks from its predecessor's.
        self._number += 1
        return f"{timestamp:.3f}-{self._number}"

    def tick(self, now: float, timestamp: float) -> tuple[str, ...]:
        """Time has passed; returns pods that live, though they neither join nor watch."""
        if self._check is None or self._check.result:
            return ()
        self._check.advance(now)
        self._conclude(timestamp)
        if self._check is None or now - self._vouched_at < VOUCH_SECONDS:
            return ()
        self._vouched_at = now
        return self._check.pods

    def on_round_started(self, members: Iterable[Member] = ()) -> None:
        """Training begins: what was not checked by now is not.

        Args:
            members: who trains.
        """
        self._due, self._check = False, None
        self._late_checks.clear()
        self._passed |= {(member.pod, member.incarnation) for member in members}

    def on_failure(self, failure: Failure) -> None:
        """A training process has failed."""
        if self._mode != OFF and failure.action == REPLACE_NODE:
            self._due, self._check = True, None
            self._limits = dataclasses.replace(self._limits, gather=RECHECK_SECONDS)

    def _conclude(self, timestamp: float) -> None:
        ended = self._check.result if self._check else None
        if self._check is None or ended is None:
            return
        self._passed |= self._check.launchers
        self._due, self._check = False, None
        self.last = checks.truncate(dataclasses.replace(ended, at=timestamp), MAX_PODS)
        bad = [one for one in ended.verdicts if one.reason]
        self._event_log.record(names.EVENT_PREFLIGHT, checks.summarize(ended), warning=bool(bad))
        for one in bad[:MAX_EVENTS]:
            self._emit_verdict(one, timestamp)

    def _emit_verdict(self, result: NodeVerdict, timestamp: float) -> None:
        where = f"{result.pod} on {result.node}" if result.node else result.pod
        told = f"{where} is {result.verdict}: {result.reason}"
        self._event_log.record(names.EVENT_NODE_CHECK_FAILED, told, warning=True)
        if self._mode == EXCLUDE and result.verdict in (SLOW, FAULTY) and result.node:
            reason = f"{result.verdict}: {result.reason}"
            self._faulty_nodes.add(FaultyNode(result.node, result.pod, KIND, reason, timestamp))
