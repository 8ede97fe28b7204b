# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sealed slots to storage, in the background, at the policy's pace, and all at once on flush.

A replicated state is persisted by the pod of rank 0 alone, a sharded one by every pod when the
coordinator names the step. The slot is pinned while it is read: training saves into the other.
A storage that refuses costs a Warning event and a pause; checkpoints in memory go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.messages import Acknowledged, Durable, WaitRequest
from rover_kf.checkpoint import pieces
from rover_kf.checkpoint.control import Seal
from rover_kf.checkpoint.manifest import RankFile
from rover_kf.checkpoint.storage import Storage
from rover_kf.sidecar.seams import Peers, Story
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots import Assignment, Slots

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_POLL_SECONDS = 1.0
"""A seal whose message was lost is found after this time."""
_FLUSH_SECONDS = 600.0
_LONG_POLL_SECONDS = 10.0


@dataclasses.dataclass(slots=True)
class _Progress:
    """How far one local rank has come."""

    durable: int = 0
    """Sequence of the newest seal that the coordinator took."""
    refused: tuple[int, int] = (0, 0)
    """Round and sequence of the newest that it refused: a later round may ask again."""
    wanted: int | None = None
    """Step that the coordinator named."""
    not_before: float = 0.0
    """Monotonic seconds of the next attempt."""
    told_at: float = float("-inf")
    """Monotonic seconds of the last Warning: a flush that is asked for ever anew tells one."""


class Persister:
    """One a sidecar.

    Args:
        settings: of the sidecar; ``checkpoint_path`` is set.
        slots: this pod's.
        storage: the job's folder.
        peers: to report to the coordinator.
        story: where refusals are told.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        slots: Slots,
        storage: Storage,
        peers: Peers,
        story: Story,
    ) -> None:
        self._settings, self._slots, self._storage = settings, slots, storage
        self._peers, self._story = peers, story
        self._progress: dict[int, _Progress] = {}
        self._wake = asyncio.Event()
        self._busy = asyncio.Lock()

    def wake(self, local_rank: int | None = None, step: int | None = None) -> None:
        """There is a new seal; with a step: the coordinator wants it persisted."""
        if local_rank is not None:
            self._of(local_rank).wanted = step
        self._wake.set()

    async def run(self) -> None:
        """Persist what is due, for ever."""
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _POLL_SECONDS)
            self._wake.clear()
            for local_rank in await asyncio.to_thread(self._slots.local_ranks):
                try:
                    async with self._busy:
                        await self._persist_due(local_rank)
                except (errors.RoverError, OSError) as error:  # noqa: PERF203 - one rank's only
                    self._postpone(local_rank, error)

    async def flush(self) -> Acknowledged:
        """Make the newest sealed step of every local rank durable; says why if it could not."""
        deadline = time.monotonic() + _FLUSH_SECONDS
        newest = 0
        for local_rank in await asyncio.to_thread(self._slots.local_ranks):
            seals = self._slots.arena(local_rank).sealed()
            if not seals:
                continue
            newest = max(newest, seals[0].step)
            try:
                async with self._busy:
                    if self._is_ours(local_rank, seals[0]):
                        await self._persist(local_rank, seals[0])
            except (errors.RoverError, OSError) as error:
                self._postpone(local_rank, error)
                return Acknowledged(done=False, reason=str(error))
        if not newest:
            return Acknowledged(reason="nothing was saved")
        return await self.wait_durable(newest, deadline - time.monotonic())

    async def wait_durable(self, step: int, seconds: float) -> Acknowledged:
        """Wait until the coordinator has committed the step or a newer one."""
        deadline = time.monotonic() + seconds
        while True:
            rest = min(max(deadline - time.monotonic(), 0.0), _LONG_POLL_SECONDS)
            try:
                reply = await self._peers.ask_coordinator(
                    names.PATH_COMMIT_WAIT, WaitRequest(step, "durable", rest), Acknowledged
                )
            except errors.RoverError as error:
                return Acknowledged(done=False, reason=str(error))
            if reply.done or time.monotonic() >= deadline:
                return reply

    async def _persist_due(self, local_rank: int) -> None:
        progress, now = self._of(local_rank), time.monotonic()
        seals = self._slots.arena(local_rank).sealed()
        if not seals or now < progress.not_before:
            return
        seal = seals[0]
        if not seal.replicated:
            named = [item for item in seals if item.step == progress.wanted]
            if not named:
                return
            seal, progress.wanted = named[0], None
        if self._is_open(local_rank, seal) and self._is_ours(local_rank, seal):
            # From begin to begin; 0 means again as soon as this one has finished.
            progress.not_before = now + self._settings.persist_seconds
            await self._persist(local_rank, seal)

    async def _persist(self, local_rank: int, seal: Seal) -> None:
        if not self._is_open(local_rank, seal):
            return
        progress = self._of(local_rank)
        assignment = self._assignment(local_rank, seal)
        begun = time.monotonic()
        try:
            file = await asyncio.to_thread(self._write, local_rank, seal, assignment)
        except errors.TornSnapshot as error:
            _log.info("not persisted: %s", error)
            return
        except errors.StorageFailed as error:
            if assignment == self._assignment(local_rank, seal):
                raise
            # The new round's retention has removed the old one's unfinished folder.
            _log.info("given up with round %d: %s", assignment.round, error)
            return
        durable = Durable(
            pod=self._settings.pod,
            rank=file.rank,
            world_size=assignment.world_size,
            round=assignment.round,
            step=seal.step,
            replicated=seal.replicated,
            file=file.name,
            file_bytes=file.length,
            checksum=file.checksum,
            persist_seconds=time.monotonic() - begun,
        )
        reply = await self._peers.ask_coordinator(names.PATH_COMMIT_DURABLE, durable, Acknowledged)
        if reply.done:
            progress.durable = max(progress.durable, seal.sequence)
        else:
            progress.refused = max(progress.refused, (assignment.round, seal.sequence))
            _log.info("step %d is not committed: %s", seal.step, reply.reason)

    def _write(self, local_rank: int, seal: Seal, assignment: Assignment) -> RankFile:
        rank = 0 if seal.replicated else assignment.rank
        # Under the running round, not the seal's: a writer that was left behind in an older round
        # has a folder of its own and cannot touch what this round makes.
        folder = self._storage.folder(seal.step, assignment.round)
        expected = self._slots.checksum(local_rank, seal)
        with self._slots.arena(local_rank).pin(seal) as pin:
            content = pieces.read(pin.descriptor, 0, seal.length)
            file = self._storage.write_rank(folder, rank, content, seal.length)
        if file.checksum != expected:
            raise errors.StorageFailed(
                f"step {seal.step}: CRC-32C {file.checksum:08x} was written, {expected:08x} sealed"
            )
        return file

    def _is_open(self, local_rank: int, seal: Seal) -> bool:
        progress = self._of(local_rank)
        attempt = (self._assignment(local_rank, seal).round, seal.sequence)
        return seal.sequence > progress.durable and attempt > progress.refused

    def _is_ours(self, local_rank: int, seal: Seal) -> bool:
        return not seal.replicated or self._assignment(local_rank, seal).rank == 0

    def _assignment(self, local_rank: int, seal: Seal) -> Assignment:
        known = self._slots.assignment(local_rank)
        return known or Assignment(seal.rank, seal.world_size, seal.round)

    def _postpone(self, local_rank: int, error: Exception) -> None:
        pause = max(_RETRY_SECONDS, self._settings.persist_seconds)
        progress, now = self._of(local_rank), time.monotonic()
        progress.not_before = now + pause
        if now - progress.told_at < pause:
            return
        progress.told_at = now
        self._story.record(
            names.EVENT_CHECKPOINT_WARNING,
            f"local rank {local_rank}: {error}; checkpoints in memory go on, next attempt in "
            f"{pause:g} s",
            warning=True,
        )

    def _of(self, local_rank: int) -> _Progress:
        return self._progress.setdefault(local_rank, _Progress())
