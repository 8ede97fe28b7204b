# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Headers of sources, read once for the ranks of a pod that ask together."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from rover_kf import errors
from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.sidecar.restore.header_cache import HeaderCache


@dataclasses.dataclass(frozen=True)
class Counted:
    """A source that counts who reads its header."""

    name: str
    reads: list[str]
    asked: asyncio.Event
    gate: asyncio.Event
    broken: set[str]

    async def head(self) -> Snapshot:
        self.reads.append(self.name)
        self.asked.set()
        await self.gate.wait()
        if self.name in self.broken:
            raise errors.ClusterUnavailable(f"{self.name} is gone")
        return Snapshot({}, {"name": self.name}, 0)

    def __hash__(self) -> int:
        return hash(self.name)


def _sources(count: int) -> list[Counted]:
    reads, asked, gate, broken = list[str](), asyncio.Event(), asyncio.Event(), set[str]()
    return [Counted(f"s{number}", reads, asked, gate, broken) for number in range(count)]


async def _rank(heads: HeaderCache, sources: list[Counted]) -> list[str]:
    with heads.session():
        return [head.snapshot.metadata["name"] async for _, head in heads.read_all(sources)]


def test_ranks_that_ask_together_read_each_header_once():
    """Whichever source is a rank's first; they are told in its order."""

    async def scene() -> None:
        heads, sources = HeaderCache(), _sources(40)
        orders = [[sources[k], *sources[:k], *sources[k + 1 :]] for k in (0, 5, 7)]
        ranks = [asyncio.create_task(_rank(heads, order)) for order in orders]
        sources[0].gate.set()
        for rank, order in zip(ranks, orders, strict=True):
            assert await rank == [source.name for source in order]
        # A rank's first one may have been dropped until the others come to it.
        assert len(sources) <= len(sources[0].reads) <= len(sources) + len(ranks)

    asyncio.run(scene())


def test_nothing_is_kept_behind_the_last_rank():
    """Another restore reads anew: what a place holds changes."""

    async def scene() -> None:
        heads, (source,) = HeaderCache(), _sources(1)
        source.gate.set()
        await _rank(heads, [source])
        await _rank(heads, [source])
        assert source.reads == ["s0", "s0"]

    asyncio.run(scene())


def test_a_rank_that_leaves_takes_nothing_from_the_others():
    """Its process was killed in the middle."""

    async def scene() -> None:
        heads, (source,) = HeaderCache(), _sources(1)
        leaving, staying = (asyncio.create_task(_rank(heads, [source])) for _ in range(2))
        await source.asked.wait()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        source.gate.set()
        assert await staying == ["s0"]
        assert source.reads == ["s0"]

    asyncio.run(scene())


def test_a_failure_is_not_kept():
    """Who asks again, asks the source: the peer may be back."""

    async def scene() -> None:
        heads, (source,) = HeaderCache(), _sources(1)
        source.gate.set()
        source.broken.add("s0")
        with heads.session():  # of another rank
            with pytest.raises(errors.ClusterUnavailable):
                await _rank(heads, [source])
            source.broken.clear()
            assert await _rank(heads, [source]) == ["s0"]

    asyncio.run(scene())
