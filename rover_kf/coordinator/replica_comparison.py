# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's half of the check of replicas: which steps, and who differs in what.

All it remembers is bounded and of one round: a rank that never reports, or a coordinator that is
started anew, costs a check.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

from aiohttp import web

from rover_kf.api import names
from rover_kf.api.checkpoints import SlotSealed
from rover_kf.api.replication import DigestAck, ReplicaDigest, TensorChecksum
from rover_kf.api.states import NO_STATE, State
from rover_kf.checkpoint import divergence
from rover_kf.checkpoint.divergence import ReplicaGroups
from rover_kf.sidecar.http.app import read, reply
from rover_kf.sidecar.http.long_poll import LongPoll
from rover_kf.sidecar.interfaces import EventRecorder

_MAX_NAMED = 3
"""Ranks, and tensors; an Event's message is bounded."""


_PAIR = 2


def mismatch_message(
    step: int,
    grouping: ReplicaGroups,
    *,
    pods: Mapping[int, str],
    tensors: Sequence[str],
    count: int,
    equal: State | None,
) -> str:
    """The message.

    Args:
        step: that was compared.
        grouping: of its ranks.
        pods: by rank.
        tensors: names of those in which they differ.
        count: how many tensors were compared.
        equal: the newest state that was found equal on all ranks.
    """
    suspects = [f"{rank} ({pods[rank]})" for rank in grouping.suspects]
    where = f"{len(tensors)} of {count} tensors that all ranks should hold alike: {_some(tensors)}"
    if grouping.has_plurality:
        who = "rank {} differs" if len(suspects) == 1 else "ranks {} differ"
        others = len(grouping.groups[0])
        found = f"{who.format(_some(suspects))} from the other {others} in {where}"
    else:
        why = "of two" if len(suspects) == _PAIR else "where no group is the largest"
        found = f"ranks {_some(suspects)} differ in {where}; {why} nobody can tell which is wrong"
    since = (
        f"All were equal at step {equal.step}; later checkpoints may be wrong"
        if equal is not None
        else "No earlier step was found equal, so they may have begun unequal"
    )
    return (
        f"step {step}: {found}. {since}. Look at the memory and GPU of the pod's node, and for "
        "code that changes these tensors on some ranks only"
    )


def _some(items: Sequence[str]) -> str:
    more = len(items) - _MAX_NAMED
    shown = ", ".join(items[:_MAX_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown


_log = logging.getLogger(__name__)


_TIMEOUT_SECONDS = 30.0
"""After the newest report the others are not waited for. A pod sums its ranks' slots in turn, a few
gigabytes a second: of eight large ones the last is done a minute after the first."""


_MAX_OPEN = 4
"""Steps that are compared at one time; beyond it the oldest is given up."""


_MAX_REPORTED = 16
"""Sets of ranks that are told of in one round: who differs anew at each check fills no story."""


@dataclasses.dataclass(slots=True)
class _StepComparison:
    """One step."""

    updated_at: float
    """When the newest report came."""
    digests: dict[int, ReplicaDigest] = dataclasses.field(default_factory=dict)
    grouping: ReplicaGroups | None = None
    """None: not all have reported, and it is still waited for them."""
    listings: dict[int, tuple[TensorChecksum, ...]] = dataclasses.field(default_factory=dict)

    @property
    def listing_ranks(self) -> tuple[int, ...]:
        """Ranks whose listings are needed."""
        return (
            self.grouping.representatives
            if self.grouping and not self.grouping.is_unanimous
            else ()
        )


class ReplicaComparison:
    """One a coordinator.

    Args:
        every: saves from one check to the next; 0: none is made.
        events: where ranks that differ are told.
        timeout_seconds: how long after a rank's report another one may come.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        every: int,
        events: EventRecorder,
        *,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every, self._events, self._timeout = every, events, timeout_seconds
        self._clock = clock
        self._poll = LongPoll()
        self._newest = NO_STATE
        self._saves = 0
        self._due: tuple[State, ...] = ()
        self._open: dict[State, _StepComparison] = {}
        self._reported: set[tuple[int, ...]] = set()
        self._equal: State | None = None

    def routes(self) -> list[web.RouteDef]:
        """For the coordinator's TCP port."""
        return [web.post(names.PATH_REPLICA_DIGEST, self._on_digest)]

    def is_due(self, sealed: SlotSealed) -> bool:
        """Whether the step that a rank has sealed is to be checked; the same for all its ranks.

        The first save that this coordinator hears of, and every so many after it.
        """
        alone = sealed.world_size == 1 or not sealed.replicated
        if not self._every or alone or sealed.is_restored:
            return False
        if sealed.state > self._newest:
            self._newest = sealed.state
            if self._saves % self._every == 0:
                self._due = (*self._due, sealed.state)[-_MAX_OPEN:]
            self._saves += 1
        return sealed.state in self._due

    def restart(self, resumed: State | None) -> None:
        """A new round begins with that state: what was open is of the old one."""
        if self._equal is not None:
            self._equal = None if resumed is None else min(resumed, self._equal)
        for check in self._open.values():
            check.grouping = ReplicaGroups(())
        self._open.clear()
        self._reported.clear()
        self._poll.notify()

    async def _on_digest(self, request: web.Request) -> web.Response:
        told = await read(request, ReplicaDigest)
        key = told.state
        if told.listing:
            self._add_listing(key, told)
            return reply(DigestAck())
        check = self._get_comparison(key)
        if check.grouping is None:
            check.digests[told.rank], check.updated_at = told, self._clock()
        if len(check.digests) >= told.world_size:
            self._compare(key, check)
            self._poll.notify()

        def settled() -> ReplicaGroups | None:
            if self._clock() - check.updated_at >= self._timeout:
                self._compare(key, check)  # Those who have reported are compared.
            return check.grouping

        await self._poll.wait(settled, math.inf)
        return reply(DigestAck(send_listing=told.rank in check.listing_ranks))

    def _get_comparison(self, key: State) -> _StepComparison:
        check = self._open.setdefault(key, _StepComparison(self._clock()))
        while len(self._open) > _MAX_OPEN:
            del self._open[min(self._open)]
        return check

    def _compare(self, key: State, check: _StepComparison) -> None:
        if check.grouping is not None:
            return
        found = {r: told.digest for r, told in check.digests.items() if told.digest is not None}
        check.grouping = divergence.group_by_digest(found)
        if not check.grouping.is_unanimous:
            return
        self._open.pop(key, None)
        if all(len(found) >= told.world_size for told in check.digests.values()):
            self._equal = key
            _log.info("%s: %d ranks hold the same", key, len(found))

    def _add_listing(self, key: State, digest: ReplicaDigest) -> None:
        check = self._open.get(key)
        if check is None or check.grouping is None or digest.rank not in check.listing_ranks:
            return
        check.listings[digest.rank] = digest.listing
        if len(check.listings) == len(check.listing_ranks):
            del self._open[key]
            self._emit_mismatch(key.step, check, check.grouping)

    def _emit_mismatch(self, step: int, check: _StepComparison, grouping: ReplicaGroups) -> None:
        if grouping.suspects in self._reported or len(self._reported) >= _MAX_REPORTED:
            _log.info("step %d: ranks still differ: %s", step, grouping.suspects)
            return
        self._reported.add(grouping.suspects)
        first = check.digests[grouping.representatives[0]]
        message = mismatch_message(
            step,
            grouping,
            pods={rank: told.pod for rank, told in check.digests.items()},
            tensors=divergence.differing_names(
                [check.listings[rank] for rank in check.listing_ranks]
            ),
            count=first.tensors,
            equal=self._equal,
        )
        self._events.record(names.EVENT_REPLICA_MISMATCH, message, warning=True)
