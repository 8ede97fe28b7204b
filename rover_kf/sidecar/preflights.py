# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the job's nodes at the coordinator: when one is due, and what is told of it.

One is due before the first round, and again after a failure that its node is to blame for.
"""

from __future__ import annotations

import dataclasses
import logging

from rover_kf.api import names
from rover_kf.api.membership import Failure
from rover_kf.api.nodes import UnfitNode
from rover_kf.api.preflight import FAULTY, SLOW, CheckReply, CheckRequest, NodeVerdict, Preflight
from rover_kf.elastic.failures.rule import REPLACE_NODE
from rover_kf.elastic.preflight import check as checks
from rover_kf.elastic.preflight.check import Check, CheckLimits
from rover_kf.sidecar.story import Chronicle
from rover_kf.sidecar.unfit_nodes import UnfitNodes

_log = logging.getLogger(__name__)

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
        if self._due and (self._check is None or self._check.result):
            self._number += 1
            # The time tells a restarted coordinator's checks from its predecessor's.
            name = f"{at:.3f}-{self._number}"
            self._check = Check(name, expected, self._limits, now)
        if not self._due or self._check is None:
            return CheckReply("go")
        answer = self._check.ask(request, now)
        self._settle(at)
        return answer

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

    def formed(self) -> None:
        """Training begins: what was not checked by now is not."""
        self._due, self._check = False, None

    def failed(self, failure: Failure) -> None:
        """A training process has failed."""
        if self._mode != OFF and failure.action == REPLACE_NODE:
            self._due, self._check = True, None
            self._limits = dataclasses.replace(self._limits, gather=AGAIN_SECONDS)

    def _settle(self, at: float) -> None:
        ended = self._check.result if self._check else None
        if ended is None:
            return
        self._due, self._check = False, None
        self.last = checks.shortened(dataclasses.replace(ended, at=at), MOST_PODS)
        bad = [one for one in ended.verdicts if one.reason]
        self._chronicle.record(names.EVENT_PREFLIGHT, checks.summary(ended), warning=bool(bad))
        for one in bad[:MOST_TOLD]:
            self._tell(one, at)

    def _tell(self, found: NodeVerdict, at: float) -> None:
        where = f"{found.pod} on {found.node}" if found.node else found.pod
        told = f"{where} is {found.verdict}: {found.reason}"
        self._chronicle.record(names.EVENT_NODE_UNFIT, told, warning=True)
        if self._mode == EXCLUDE and found.verdict in (SLOW, FAULTY) and found.node:
            reason = f"{found.verdict}: {found.reason}"
            self._unfit.add(UnfitNode(found.node, found.pod, KIND, reason, at))
