# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's files on a storage that is slow."""

from __future__ import annotations

import asyncio
import os
import pathlib
import threading

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import ArenaRequest
from rover_kf.api.status import Ack
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.rate_limit import RateLimitedWriter, RateLimiter
from rover_kf.coordinator.commit.commit_service import CommitService
from rover_kf.sidecar.persist.job_storage import JobStorage
from rover_kf.sidecar.persist.persister import Persister
from rover_kf.sidecar.slots.slots import PodSlots
from tests.support.pods import checkpoint_pod
from tests.support.states import identities


class Slow(RateLimitedWriter):
    """Writes no file before it is told to."""

    def __init__(self, storage: DirectoryStorage) -> None:
        super().__init__(storage, RateLimiter(0))
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.files = 0

    def write_slot(self, *what):
        self.files += 1
        self.begun.set()
        assert self.go_on.wait(60)
        return super().write_slot(*what)


class Coordinator:
    """In the same process; what it is asked once a step is durable it says at once."""

    def __init__(self, commits: CommitService) -> None:
        self._commits, self.is_there = commits, True

    async def call_coordinator(self, path, message, _reply):
        if not self.is_there:
            raise errors.ClusterUnavailable("it has ended")
        if path == names.PATH_COMMIT_DURABLE:
            return await self._commits._committer.on_rank_durable(message)
        if path == names.PATH_COMMIT_LEFT:
            return Ack()
        assert path == names.PATH_COMMIT_WAIT
        return Ack(done=self._commits.durable_step == message.state.step)


class Pod:
    """A pod that holds step 7, and its coordinator."""

    def __init__(self, home: pathlib.Path) -> None:
        pvc, told = home / "pvc", checkpoint_pod.Told()
        settings = checkpoint_pod.settings_of(home, checkpoint_path=str(pvc))
        self.stored, slots = DirectoryStorage(pvc / "demo"), PodSlots(settings)
        layout = snapshot.plan([snapshot.Entry("content", "U8", (4,), 1)], {})
        state = snapshot.header(layout, {}) + b"four"
        slots.allocate(ArenaRequest(0, len(state)))
        with slots.arena(0).fill() as filling:
            os.pwrite(filling.descriptor, state, 0)
            filling.seal(
                state=identities.state(7), length=len(state), rank=0, world_size=1, replicated=True
            )
        self.coordinator = Coordinator(CommitService(settings, told, None, storage=self.stored))
        self.writer = Slow(self.stored)
        place = JobStorage(self.stored, self.writer, RateLimiter(0))
        self.persister = Persister(settings, slots, place, self.coordinator, told)

    def whole(self) -> list[int]:
        """Steps on storage, every byte compared."""
        return [self.stored.verify(folder).state.step for folder in self.stored.complete_folders()]


def test_a_file_that_is_being_written_is_not_begun_again(tmp_path):
    """Who waits for a flush hangs up, and asks again: it gets what was being written."""
    pod = Pod(tmp_path)

    async def ask_twice() -> Ack:
        first = asyncio.create_task(pod.persister.flush())
        await asyncio.to_thread(pod.writer.begun.wait, 60)
        first.cancel()
        await asyncio.wait({first})
        pod.writer.go_on.set()
        return await pod.persister.flush()

    assert asyncio.run(ask_twice()) == Ack()
    assert (pod.writer.files, pod.whole()) == (1, [7])


def test_a_step_on_storage_needs_no_coordinator(tmp_path):
    """It has ended since it committed the step: a pod that ends later is told so all the same."""
    pod = Pod(tmp_path)
    pod.writer.go_on.set()

    async def flush_twice() -> list[Ack]:
        first = await pod.persister.flush()
        pod.coordinator.is_there = False
        return [first, await pod.persister.flush()]

    assert asyncio.run(flush_twice()) == [Ack(), Ack()]
