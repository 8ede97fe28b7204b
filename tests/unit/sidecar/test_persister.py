# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's files on a storage that is slow."""

from __future__ import annotations

import asyncio
import os
import threading

import checkpoint_pod

from rover_kf.api import names
from rover_kf.api.checkpoints import ArenaRequest
from rover_kf.api.status import Acknowledged
from rover_kf.checkpoint import snapshot
from rover_kf.checkpoint.bandwidth import Cap
from rover_kf.checkpoint.capped_writer import CappedWriter
from rover_kf.checkpoint.directory_storage import DirectoryStorage
from rover_kf.sidecar.commits import Commits
from rover_kf.sidecar.persister import Persister
from rover_kf.sidecar.slots import Slots


class Slow(CappedWriter):
    """Writes no file before it is told to."""

    def __init__(self, storage: DirectoryStorage) -> None:
        super().__init__(storage, Cap(0))
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.files = 0

    def write_slot(self, *what):
        self.files += 1
        self.begun.set()
        assert self.go_on.wait(60)
        return super().write_slot(*what)


class Coordinator:
    """In the same process; what it is asked once a step is durable it says at once."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits

    async def ask_coordinator(self, path, message, _reply):
        if path == names.PATH_COMMIT_DURABLE:
            return await self._commits._take_durable(message)
        assert path == names.PATH_COMMIT_WAIT
        return Acknowledged(done=self._commits.durable_step == message.step)


def test_a_file_that_is_being_written_is_not_begun_again(tmp_path):
    """Who waits for a flush hangs up, and asks again: it gets what was being written."""
    told, pvc = checkpoint_pod.Told(), tmp_path / "pvc"
    settings = checkpoint_pod.settings_of(tmp_path, checkpoint_path=str(pvc))
    storage, slots = DirectoryStorage(pvc / "demo"), Slots(settings)
    layout = snapshot.plan([snapshot.Entry("content", "U8", (4,), 1)], {})
    state = snapshot.header(layout, {}) + b"four"
    slots.allocate(ArenaRequest(0, len(state)))
    with slots.arena(0).fill() as filling:
        os.pwrite(filling.descriptor, state, 0)
        filling.seal(step=7, length=len(state), rank=0, world_size=1, round_=1, replicated=True)

    async def ask_twice(persister: Persister, slow: Slow) -> Acknowledged:
        first = asyncio.create_task(persister.flush())
        await asyncio.to_thread(slow.begun.wait, 60)
        first.cancel()
        await asyncio.wait({first})
        slow.go_on.set()
        return await persister.flush()

    commits = Commits(settings, told, None, storage=storage)
    slow = Slow(storage)
    persister = Persister(settings, slots, slow, Coordinator(commits), told)
    assert asyncio.run(ask_twice(persister, slow)) == Acknowledged()
    assert slow.files == 1
    (folder,) = storage.whole()
    assert (folder.step, storage.verify(folder).files[0].length) == (7, len(state))
