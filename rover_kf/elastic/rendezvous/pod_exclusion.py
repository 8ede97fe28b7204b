# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods whose processes fail repeatedly, excluded for a time while the others train.

Three failures in a row of one pod, and none of the others, point to that pod, not to the job. Its
next failures cost the pod time, which doubles, instead of the job's budget. Where that holds of
more than one pod in ten, the job is at fault, and its budget pays.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.membership import Failure, Member
from rover_kf.elastic.rendezvous.world import World

STREAK = 3
"""Failures in a row."""
APART_SECONDS = 600.0
"""Of a row: a failure that comes later than this after the last one begins another."""
LONGEST = 60.0
"""Times of the first penalty."""
_SHARE = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Exclusion:
    """An exclusion of one pod on one node; elsewhere it begins again."""

    node: str
    seconds: float
    until: float
    failures: int


class PodExclusions:
    """The exclusions of one coordinator's pods; a successor begins with none."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._exclusions: dict[str, Exclusion] = {}
        self._streak_pod: tuple[str, str] = ("", "")
        self._length = 0
        self._last = float("-inf")
        self._last_result: tuple[int, str, bool] = (0, "", False)

    def charge_pod(self, failure: Failure) -> bool:
        """Note a failure that counts; return whether its pod pays for it, not the job.

        The first failure of a round is noted. Others of it are the same failure, or the job's.
        """
        number, pod, taken = self._last_result
        if failure.round == number:
            return taken and failure.pod == pod
        taken = self._evaluate(failure)
        self._last_result = (failure.round, failure.pod, taken)
        return taken

    def _evaluate(self, failure: Failure) -> bool:
        world, now = self._world, self._world.now
        seat = world.member_index.get(failure.pod)
        if seat is None or not world.limits.exclusion_seconds:
            return False
        member = seat.member
        known = self._current(member)
        self._count_streak((member.pod, member.node), now - (known.seconds if known else 0.0))
        others = [one for pod, one in self._exclusions.items() if pod != member.pod]
        most = max(len(world.member_index) // _SHARE, 1)
        if self._length < STREAK or not self._others_suffice(member.pod) or len(others) >= most:
            return False
        first = world.limits.exclusion_seconds
        seconds = min(known.seconds * 2, first * LONGEST) if known else first
        failures = known.failures + 1 if known else self._length
        self._exclusions[member.pod] = Exclusion(member.node, seconds, now + seconds, failures)
        place = f"{member.pod} on {member.node}" if member.node else member.pod
        message = (
            f"{place} is kept out for {seconds:.0f} s, the others train without it: {failures} "
            f"failures in a row were its own; last: {failure.kind}: {failure.reason}"
        )
        world.emit_event(names.EVENT_POD_EXCLUDED, message, warning=True)
        return True

    def denial_reason(self, member: Member) -> str:
        """Why the pod may not join now; empty if it may."""
        known = self._current(member)
        if known is None or known.until <= self._world.now or not self._others_suffice(member.pod):
            return ""
        left = known.until - self._world.now
        return f"{known.failures} failures in a row were its own, for {left:.0f} s the others train"

    def _current(self, member: Member) -> Exclusion | None:
        known = self._exclusions.get(member.pod)
        if known and known.node != member.node:
            del self._exclusions[member.pod]
            return None
        return known

    def _count_streak(self, pod_on_node: tuple[str, str], now: float) -> None:
        again = pod_on_node == self._streak_pod and now - self._last <= APART_SECONDS
        self._length = self._length + 1 if again else 1
        self._streak_pod, self._last = pod_on_node, self._world.now

    def _others_suffice(self, pod: str) -> bool:
        others = len(self._world.member_index) - (self._world.member_index.get(pod) is not None)
        return self._world.limits.largest_world(others) > 0
