# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the sources of a restore say they hold, read once for all ranks of the pod.

A world of another size: each rank has to know what all ranks before held. Those of a pod ask at the
same time, in about the same order, and a header of thousands of tensors takes time to read.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator, Iterator, Sequence

from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.checkpoint.format.tensor_layout import Kinds, kinds_of
from rover_kf.sidecar.slots.sources import SlotSource, Source
from rover_kf.sidecar.tasks import together

_AHEAD = 4
"""Sources that a rank asks together: each may be a journey away."""
_AT_ONCE = 8
"""Sources that are read at a time for all ranks: of a folder each takes a process."""
_KEPT = 16
"""Headers, the newest; some ranks are a little behind others, and more would take memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """Of one source."""

    snapshot: Snapshot
    kinds: Kinds


class Heads:
    """One a sidecar."""

    def __init__(self) -> None:
        self._known: dict[Source, asyncio.Future[Head]] = {}
        self._ranks = 0
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While a rank asks; behind the last one nothing is kept."""
        self._ranks += 1
        try:
            yield
        finally:
            self._ranks -= 1
            if not self._ranks:
                for one in self._known.values():
                    one.cancel()  # what nobody waits for any more
                self._known.clear()

    async def of_all(self, sources: Sequence[Source]) -> AsyncIterator[tuple[int, Head]]:
        """Index and header of each, in order.

        Raises:
            TornSnapshot: one cannot be read.
            ClusterUnavailable: a peer cannot be reached.
            StorageFailed: the storage cannot be read.
        """
        for begin in range(0, len(sources), _AHEAD):
            batch = sources[begin : begin + _AHEAD]
            for index, head in enumerate(await together(map(self._of, batch)), begin):
                yield index, head

    async def _of(self, source: Source) -> Head:
        if isinstance(source, SlotSource):  # each rank pins for itself; here and soon read
            return await self._read(source)
        found = self._known.get(source)
        if found is None:
            found = self._known[source] = asyncio.ensure_future(self._read(source))
            found.add_done_callback(functools.partial(self._drop_failed, source))
            while len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]
        return await asyncio.shield(found)  # one rank that leaves takes nothing from the others

    async def _read(self, source: Source) -> Head:
        async with self._turns:
            found = await source.head()
            return Head(found, await asyncio.to_thread(kinds_of, found))

    def _drop_failed(self, source: Source, done: asyncio.Future[Head]) -> None:
        """Whoever asks again, asks the source."""
        failed = done.cancelled() or done.exception() is not None
        if failed and self._known.get(source) is done:
            del self._known[source]
