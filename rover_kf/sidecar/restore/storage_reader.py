# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One rank's read of the checkpoint on storage that its round restores, verified by all ranks.

The rank reports its progress and what it finds. It resumes only once every rank of the round has
verified its own part; where one finds damage, all of them ask the coordinator for another state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    RejectedState,
    RestoreRequest,
    RestoreStepReply,
    StorageRead,
    StorageReadReply,
)
from rover_kf.api.states import State
from rover_kf.checkpoint import rank_ranges
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.checkpoint.resharding import step_selection
from rover_kf.sidecar.interfaces import PeerClient
from rover_kf.sidecar.slots import sources
from rover_kf.sidecar.slots.sources import FileSource

_REPORT_SECONDS = 5.0
"""Between two reports of a rank that reads."""
_WAIT_SECONDS = 10.0
"""Of one request by a rank that waits for the others."""
_STALL_SECONDS = 1800.0
"""Without a byte that any rank has read, until the restore is given up."""


class DamagedCheckpoint(Exception):
    """A state on storage that some rank of the round found damaged."""

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.rejected = RejectedState(state, reason)


class StorageReader:
    """The read of one rank.

    Args:
        peers: to report to the coordinator.
        request: of the training process.
        choice: of the coordinator; from storage.
        on_progress: called where any rank has read something since the last report.
        warn: takes each read that fails and is repeated.
    """

    def __init__(
        self,
        peers: PeerClient,
        request: RestoreRequest,
        choice: RestoreStepReply,
        on_progress: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        assert choice.state is not None  # noqa: S101 - it comes from storage
        self._peers, self._request, self._choice = peers, request, choice
        self._state, self._on_progress = choice.state, on_progress
        self._warn = warn
        self._read_bytes = 0
        self._progress = 0, time.monotonic()
        """Bytes of all ranks together, and when they were more than before."""

    def add(self, count: int) -> None:
        """Count bytes that were read."""
        self._read_bytes += count

    async def peek(self, source: FileSource) -> Snapshot:
        """The header of a file, all of which is read and verified.

        Raises:
            DamagedCheckpoint: the file is damaged.
            StorageError: the storage cannot be read.
            CheckpointError: the round is over.
        """
        try:
            await sources.verify(source)
            return await source.head()
        except errors.CorruptSnapshot as damage:
            found = await self._report(damage=str(damage))
            raise DamagedCheckpoint(self._state, found.damage) from damage

    async def read(
        self, fetch: Callable[[], Awaitable[Seal]], files: Callable[[], Awaitable[list[FileSource]]]
    ) -> Seal:
        """Read, and wait until every rank has verified its part.

        Args:
            fetch: fills the rank's slot; verifies what it reads.
            files: all files of the checkpoint.

        Raises:
            DamagedCheckpoint: this rank or another one found damage.
            StorageError: the storage cannot be read.
            CheckpointError: the round is over, or no rank has read anything for long.
        """
        fetching = asyncio.ensure_future(self._fetch(fetch, files))
        try:
            while not (await asyncio.wait({fetching}, timeout=_REPORT_SECONDS))[0]:
                await self._report()
            seal, damage = fetching.result()
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
        while True:
            found = await self._report(finished=seal is not None, damage=damage)
            if found.damage or seal is None:
                raise DamagedCheckpoint(self._state, found.damage or damage)
            if found.complete:
                return seal
            self._check_stall(found)

    async def _fetch(
        self, fetch: Callable[[], Awaitable[Seal]], files: Callable[[], Awaitable[list[FileSource]]]
    ) -> tuple[Seal | None, str]:
        """The slot, or what is damaged. A read that fails says nothing of what is there."""
        for pause in step_selection.PAUSES:
            try:
                return await self._fetch_once(fetch, files)
            except errors.StorageError as error:  # noqa: PERF203 - a retry
                folder = self._choice.path.rpartition("/")[2]
                self._warn(f"{folder} cannot be read, trying again in {pause:g} s: {error}")
                await asyncio.sleep(pause)
        try:
            return await self._fetch_once(fetch, files)
        except errors.StorageError as error:
            raise step_selection.unreadable_error(self._choice.path, error) from error

    async def _fetch_once(
        self, fetch: Callable[[], Awaitable[Seal]], files: Callable[[], Awaitable[list[FileSource]]]
    ) -> tuple[Seal | None, str]:
        try:
            return await fetch(), ""
        except (errors.StorageError, errors.ArenaTooSmall):
            raise
        except errors.CorruptSnapshot as damage:
            return None, str(damage)
        except errors.CheckpointError:
            # Headers are read before the bytes that they belong to are verified: one that is
            # damaged may describe another state, which does not fit.
            try:
                for file in await files():
                    await sources.verify(file)
            except errors.CorruptSnapshot as damage:
                return None, str(damage)
            raise

    async def _report(self, *, finished: bool = False, damage: str = "") -> StorageReadReply:
        request = self._request
        report = StorageRead(
            self._choice.round, request.rank, request.world_size, self._state, self._read_bytes,
            finished, damage, _WAIT_SECONDS if finished else 0.0,
        )  # fmt: skip
        found = await self._peers.call_coordinator(names.PATH_COMMIT_READ, report, StorageReadReply)
        if found.read_bytes > self._progress[0]:
            self._progress = found.read_bytes, time.monotonic()
            self._on_progress()
        return found

    def _check_stall(self, reply: StorageReadReply) -> None:
        seconds = time.monotonic() - self._progress[1]
        if seconds >= _STALL_SECONDS:
            raise errors.CheckpointError(
                f"ranks {rank_ranges.format_ranks(reply.missing)} have read nothing of "
                f"{self._choice.path} for {seconds:.0f} s; see the logs of their sidecars"
            )
