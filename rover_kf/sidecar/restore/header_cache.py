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
from rover_kf.checkpoint.format.tensor_layout import TensorLayout, read_tensor_layout
from rover_kf.sidecar.slots.sources import SlotSource, SnapshotSource
from rover_kf.sidecar.tasks import gather_or_cancel

_AHEAD = 4
"""Sources that a rank asks together: each may be a journey away."""
_CONCURRENCY = 8
"""Sources that are read at a time for all ranks: of a folder each takes a process."""
_MAX_CACHED = 16
"""Headers, the newest; some ranks are a little behind others, and more would take memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class CachedHeader:
    """Of one source."""

    snapshot: Snapshot
    layout: TensorLayout


class HeaderCache:
    """One a sidecar."""

    def __init__(self) -> None:
        self._cached: dict[SnapshotSource, asyncio.Future[CachedHeader]] = {}
        self._ranks = 0
        self._semaphore = asyncio.Semaphore(_CONCURRENCY)

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """While a rank asks; behind the last one nothing is kept."""
        self._ranks += 1
        try:
            yield
        finally:
            self._ranks -= 1
            if not self._ranks:
                for one in self._cached.values():
                    one.cancel()  # what nobody waits for any more
                self._cached.clear()

    async def read_all(
        self, sources: Sequence[SnapshotSource]
    ) -> AsyncIterator[tuple[int, CachedHeader]]:
        """Index and header of each, in order.

        Raises:
            CorruptSnapshot: one cannot be read.
            ClusterUnavailable: a peer cannot be reached.
            StorageError: the storage cannot be read.
        """
        for begin in range(0, len(sources), _AHEAD):
            batch = sources[begin : begin + _AHEAD]
            for index, head in enumerate(await gather_or_cancel(map(self._get, batch)), begin):
                yield index, head

    async def _get(self, source: SnapshotSource) -> CachedHeader:
        if isinstance(source, SlotSource):  # each rank pins for itself; here and soon read
            return await self._read(source)
        found = self._cached.get(source)
        if found is None:
            found = self._cached[source] = asyncio.ensure_future(self._read(source))
            found.add_done_callback(functools.partial(self._drop_failed, source))
            while len(self._cached) > _MAX_CACHED:
                del self._cached[next(iter(self._cached))]
        return await asyncio.shield(found)  # one rank that leaves takes nothing from the others

    async def _read(self, source: SnapshotSource) -> CachedHeader:
        async with self._semaphore:
            found = await source.head()
            return CachedHeader(found, await asyncio.to_thread(read_tensor_layout, found))

    def _drop_failed(self, source: SnapshotSource, done: asyncio.Future[CachedHeader]) -> None:
        """Whoever asks again, asks the source."""
        failed = done.cancelled() or done.exception() is not None
        if failed and self._cached.get(source) is done:
            del self._cached[source]
