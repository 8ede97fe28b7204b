# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a training process starts from: the coordinator chooses the step, this brings its bytes.

Own memory, a peer's memory, or storage; whatever the source, the result is a sealed, verified slot
of this pod. Slots with steps after the common one are cleared: they belong to a course that the
job has left, and a later choice must not mix the two.
"""

from __future__ import annotations

import asyncio
import logging
import os

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.messages import (
    ArenaRequest,
    Holding,
    ResolveReply,
    ResolveRequest,
    RestoreReply,
    RestoreRequest,
)
from rover_kf.checkpoint import checksum, manifest, pieces, storage
from rover_kf.checkpoint.arena import Filling
from rover_kf.checkpoint.control import Seal
from rover_kf.checkpoint.manifest import Folder
from rover_kf.checkpoint.storage import Storage
from rover_kf.sidecar.seams import Peers, Story
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.slots import Assignment, Slots

_log = logging.getLogger(__name__)

CHECKSUM_HEADER = "X-Rover-Checksum"
_ATTEMPTS = 3


class Restorer:
    """One a sidecar.

    Args:
        settings: of the sidecar.
        slots: this pod's.
        store: the job's folder; None: memory only.
        peers: the coordinator and other sidecars.
        story: where restores and damages are told.
    """

    def __init__(
        self,
        settings: SidecarSettings,
        slots: Slots,
        store: Storage | None,
        peers: Peers,
        story: Story,
    ) -> None:
        self._settings, self._slots, self._storage = settings, slots, store
        self._peers, self._story = peers, story

    async def restore(self, request: RestoreRequest) -> RestoreReply:
        """Answer a training process; waits until all ranks of its round have asked.

        Raises:
            CheckpointError: ranks did not ask in time, or the state fits no such world.
            TornSnapshot: the bytes that came are not those promised.
            StorageFailed: the storage cannot be read.
            ClusterUnavailable: coordinator or peer cannot be reached.
        """
        local_rank = request.local_rank
        assignment = Assignment(request.rank, request.world_size, request.round)
        await asyncio.to_thread(self._slots.assign, local_rank, assignment)
        holdings, damages = await asyncio.to_thread(self._slots.holdings, local_rank)
        for damage in damages:
            self._story.record(names.EVENT_CHECKPOINT_WARNING, damage, warning=True)
        choice = await self._peers.ask_coordinator(
            names.PATH_COMMIT_RESOLVE,
            ResolveRequest(request.round, request.rank, request.world_size, holdings),
            ResolveReply,
        )
        if choice.step is None:
            return RestoreReply(None, "none")
        seal = await self._bring(request, choice)
        # The folder for it may have been made only now.
        await asyncio.to_thread(self._slots.assign, local_rank, assignment)
        await asyncio.to_thread(self._leave_course, local_rank, seal)
        found = await asyncio.to_thread(self._slots.checksum, local_rank, seal)
        self._story.record(
            names.EVENT_RESTORED,
            f"rank {request.rank} of {request.world_size} resumes at step {seal.step} "
            f"from {choice.source} in round {request.round}; CRC-32C {found:08x}",
        )
        path = self._slots.arena(local_rank).slot_path(seal.slot)
        return RestoreReply(seal.step, choice.source, str(path), seal.length, found)

    async def _bring(self, request: RestoreRequest, choice: ResolveReply) -> Seal:
        if choice.source == "memory" and choice.holding is not None:
            return await asyncio.to_thread(self._own, request.local_rank, choice.holding)
        if choice.source == "peer" and choice.holding is not None:
            return await self._from_peer(request, choice.holding)
        if choice.source == "storage" and self._storage is not None:
            return await asyncio.to_thread(self._from_storage, request, choice, self._storage)
        raise errors.CheckpointError(
            f"the coordinator chose {choice.source!r}, which this pod cannot reach "
            f"({names.PREFIX}checkpoint.path is {self._settings.checkpoint_path})"
        )

    def _own(self, local_rank: int, holding: Holding) -> Seal:
        for seal in self._slots.arena(local_rank).sealed():
            if (seal.step, seal.round) == (holding.step, holding.round):
                return seal
        raise errors.TornSnapshot(f"step {holding.step} was overwritten while it was being chosen")

    async def _from_peer(self, request: RestoreRequest, holding: Holding) -> Seal:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._fetch(request, holding)
            except (errors.ClusterUnavailable, errors.TornSnapshot) as error:  # noqa: PERF203 - a retry
                if attempt == _ATTEMPTS:
                    raise
                _log.warning("fetching step %d again: %s", holding.step, error)
                await asyncio.sleep(0.2 * attempt)
        raise AssertionError

    async def _fetch(self, request: RestoreRequest, holding: Holding) -> Seal:
        path = f"{names.PATH_SLOTS}/{holding.local_rank}/{holding.step}"
        async with self._peers.get(holding.address, path) as stream:
            headers = {key.lower(): value for key, value in stream.headers.items()}
            stated = headers.get(CHECKSUM_HEADER.lower())
            if stream.status != 200 or stated != str(holding.checksum):  # noqa: PLR2004 - HTTP OK
                raise errors.TornSnapshot(
                    f"{holding.pod} no longer serves step {holding.step} of rank {holding.rank} "
                    f"(status {stream.status}, checksum {stated})"
                )
            filling = await self._take(request.local_rank, holding.snapshot_bytes)
            with filling:
                offset, found = 0, 0
                async for chunk in stream.chunks(pieces.PIECE_BYTES):
                    if offset + len(chunk) > holding.snapshot_bytes:
                        raise errors.TornSnapshot(f"{holding.pod} sent more than it promised")
                    found = await asyncio.to_thread(_append, filling, chunk, offset, found)
                    offset += len(chunk)
                if (offset, found) != (holding.snapshot_bytes, holding.checksum):
                    raise errors.TornSnapshot(
                        f"{offset} bytes with CRC-32C {found:08x} came from {holding.pod}; "
                        f"{holding.snapshot_bytes} with {holding.checksum:08x} were promised"
                    )
                return self._seal(request, filling, holding)

    def _from_storage(self, request: RestoreRequest, choice: ResolveReply, store: Storage) -> Seal:
        folder = self._folder(choice, store)
        content = store.load(folder)
        file = content.file_of(request.rank)
        if file is None:
            raise errors.CheckpointError(f"{folder.location} has no file for rank {request.rank}")
        self._slots.allocate(ArenaRequest(request.local_rank, file.length))
        filling = self._slots.arena(request.local_rank).fill()
        with filling:
            offset, found = 0, 0
            for piece in store.read_range(folder, file, 0, file.length):
                found = _append(filling, piece, offset, found)
                offset += len(piece)
            storage.check(folder, file, found)
            return filling.seal(
                step=content.step,
                length=file.length,
                rank=request.rank,
                world_size=request.world_size,
                round_=content.generation,
                replicated=content.replicated,
            )

    def _folder(self, choice: ResolveReply, store: Storage) -> Folder:
        # By name below our own root: the volume may be mounted elsewhere in the coordinator's pod.
        named = manifest.parse_folder(choice.path.rstrip("/"))
        if named is None:
            raise errors.CheckpointError(f"{choice.path!r} is no checkpoint's folder")
        return store.folder(named.step, named.generation)

    async def _take(self, local_rank: int, length: int) -> Filling:
        await asyncio.to_thread(self._slots.allocate, ArenaRequest(local_rank, length))
        return await asyncio.to_thread(self._slots.arena(local_rank).fill)

    def _seal(self, request: RestoreRequest, filling: Filling, holding: Holding) -> Seal:
        seal = filling.seal(
            step=holding.step,
            length=holding.snapshot_bytes,
            rank=request.rank,
            world_size=request.world_size,
            round_=holding.round,
            replicated=holding.replicated,
        )
        self._slots.arena(request.local_rank).control.write_checksum(seal, holding.checksum)
        return seal

    def _leave_course(self, local_rank: int, chosen: Seal) -> None:
        arena = self._slots.arena(local_rank)
        for seal in arena.sealed():
            if seal.slot != chosen.slot and seal.step >= chosen.step:
                arena.discard(seal)


def _append(filling: Filling, data: bytes | memoryview, offset: int, found: int) -> int:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(filling.descriptor, rest, offset)
        rest, offset = rest[count:], offset + count
    return checksum.extend(found, data)
