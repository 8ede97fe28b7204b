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
from rover_kf.api.faults.faulty_nodes import UnfitNode
from rover_kf.api.faults.node_check_messages import (
    FAULTY,
    SLOW,
    CheckReply,
    CheckRequest,
    NodeVerdict,
    Preflight,
)
from rover_kf.api.membership import Failure, Member
from rover_kf.coordinator.fault_reports import UnfitNodes
from rover_kf.elastic.failures.rule import REPLACE_NODE
from rover_kf.elastic.node_check import check as checks
from rover_kf.elastic.node_check.check import Check, CheckLimits
from rover_kf.sidecar.event_log import Chronicle

_log = logging.getLogger(__name__)

Launcher = tuple[str, str]
"""Pod and incarnation."""

OFF, EXCLUDE = "off", "exclude"
KIND = "preflight"
"""Of an unfit node that a check has found."""
MOST_PODS, MOST_TOLD = 64, 16
"""Of a check that a status holds; of pods that are not well, with an Event each."""
VOUCH_SECONDS = 0.5
"""Between two words for pods that are being checked."""
AGAIN_SECONDS = 2.0
"""How long a check after a failure waits for further pods: the others could train meanwhile."""


class Preflights:
    """One a coordinator.

    Args:
        mode: ``off``, ``report`` or ``exclude``.
        seconds: after which a measurement has failed.
        chronicle: where checks are told of.
        unfit: where nodes go that the job shall leave.
    """

    def __init__(self, mode: str, seconds: float, chronicle: Chronicle, unfit: UnfitNodes) -> None:
        self._mode, self._chronicle, self._unfit = mode, chronicle, unfit
        self._limits = CheckLimits(measure=seconds)
        self._due = mode != OFF
        self._check: Check | None = None
        self._later: dict[Launcher, Check] = {}
        """Of pods that came later, each by itself."""
        self._passed: set[Launcher] = set()
        self._number = 0
        self._vouched = float("-inf")
        self.last: Preflight | None = None
        """The newest that has ended."""

    def ask(self, request: CheckRequest, expected: int, *, now: float, at: float) -> CheckReply:
        """A launcher is about to join.

        Args:
            request: its own.
            expected: pods of the job.
            now: monotonic seconds.
            at: Unix seconds.
        """
        if not self._due:
            return self._ask_alone(request, now=now, at=at)
        if self._check is None or self._check.result:
            self._check = Check(self._name(at), expected, self._limits, now)
        answer = self._check.ask(request, now)
        self._settle(at)
        return answer

    def _ask_alone(self, request: CheckRequest, *, now: float, at: float) -> CheckReply:
        """A pod comes that was in no check, and others are known to compare it with."""
        who = (request.member.pod, request.member.incarnation)
        if who in self._passed or self.last is None:
            return CheckReply("go")
        if who not in self._later:
            self._later[who] = Check(self._name(at), 1, self._limits, now, before=self.last.pods)
        check = self._later[who]
        answer = check.ask(request, now)
        if check.result is not None:
            del self._later[who]
            self._passed.add(who)
            for one in check.result.verdicts:
                if one.reason:
                    self._tell(one, at)
        return answer

    def _name(self, at: float) -> str:
        # The time tells a restarted coordinator's checks from its predecessor's.
        self._number += 1
        return f"{at:.3f}-{self._number}"

    def tick(self, now: float, at: float) -> tuple[str, ...]:
        """Time has passed; returns pods that live, though they neither join nor watch."""
        if self._check is None or self._check.result:
            return ()
        self._check.advance(now)
        self._settle(at)
        if self._check is None or now - self._vouched < VOUCH_SECONDS:
            return ()
        self._vouched = now
        return self._check.pods

    def formed(self, members: Iterable[Member] = ()) -> None:
        """Training begins: what was not checked by now is not.

        Args:
            members: who trains.
        """
        self._due, self._check = False, None
        self._later.clear()
        self._passed |= {(member.pod, member.incarnation) for member in members}

    def failed(self, failure: Failure) -> None:
        """A training process has failed."""
        if self._mode != OFF and failure.action == REPLACE_NODE:
            self._due, self._check = True, None
            self._limits = dataclasses.replace(self._limits, gather=AGAIN_SECONDS)

    def _settle(self, at: float) -> None:
        ended = self._check.result if self._check else None
        if self._check is None or ended is None:
            return
        self._passed |= self._check.launchers
        self._due, self._check = False, None
        self.last = checks.shortened(dataclasses.replace(ended, at=at), MOST_PODS)
        bad = [one for one in ended.verdicts if one.reason]
        self._chronicle.record(names.EVENT_PREFLIGHT, checks.summary(ended), warning=bool(bad))
        for one in bad[:MOST_TOLD]:
            self._tell(one, at)

    def _tell(self, found: NodeVerdict, at: float) -> None:
        where = f"{found.pod} on {found.node}" if found.node else found.pod
        told = f"{where} is {found.verdict}: {found.reason}"
        self._chronicle.record(names.EVENT_NODE_CHECK_FAILED, told, warning=True)
        if self._mode == EXCLUDE and found.verdict in (SLOW, FAULTY) and found.node:
            reason = f"{found.verdict}: {found.reason}"
            self._unfit.add(UnfitNode(found.node, found.pod, KIND, reason, at))
