# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""DLRover's flash checkpoint, as a plain process starts it: saves to memory, and to disk."""

from __future__ import annotations

import pathlib
import shutil
import time

from dlrover.python.common.constants import CheckpointConstant
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

from benchmarks.checkpoint_systems.system_process import Peer, Skipped, serve, sync
from benchmarks.checkpoint_systems.workload import Loop

COMMIT_SECONDS = 15.0
"""After the copy; its agent looks every five seconds."""


class DLRover(Peer):
    """Memory saves; a disk save where files are asked for."""

    _persisting = 0
    _sealed = _skipped = _lost = 0

    def open(self, loop: Loop, folder: pathlib.Path) -> None:
        """Its saver is a process of its own."""
        super().open(loop, folder)
        self._checkpointer = DdpCheckpointer(str(folder))
        self._left: list[object] = []

    def save(self, step: int) -> None:
        """To memory; it skips a save silently while it persists, which is no save."""
        self._put(step, StorageType.MEMORY)

    def begin(self, step: int) -> None:
        """To disk."""
        self._put(step, StorageType.DISK)
        self._persisting = step
        self._sealed = self._skipped = 0

    def is_busy(self) -> bool:
        """Until the tracker names the step."""
        path = self.folder / CheckpointConstant.TRACER_FILE_NAME
        return self._persisting > (int(path.read_text() or 0) if path.exists() else 0)

    def settle(self) -> None:
        """Until nothing is being persisted, or nothing more will come of it.

        A memory save right after a disk save overwrites it: its step is never committed.
        """
        deadline = time.monotonic() + COMMIT_SECONDS
        while self.is_busy() and time.monotonic() < deadline:
            time.sleep(0.005)
        self._lost += self.is_busy()
        self._persisting = 0

    def durable(self, step: int) -> None:
        """To disk, until the tracker names it, synced."""
        self.begin(step)
        self.settle()
        if self._lost:
            raise RuntimeError(f"step {step} is not committed after {COMMIT_SECONDS:g} s")
        sync(self.folder)
        for old in self.folder.iterdir():
            if old.is_dir() and old.name.isdigit() and int(old.name) != step:
                shutil.rmtree(old)

    def die(self) -> None:
        """Its successor has nothing mapped, and finds the memory by its name."""
        handler = self._checkpointer._engine._shm_handler
        self._left.append(handler.shared_memory)
        handler.shared_memory = None

    def restore(self, loop: Loop) -> None:
        """From memory."""
        loop.load(self._checkpointer.load_checkpoint())

    def account(self) -> dict[str, int]:
        """Of what it returned from as if it had saved."""
        return {
            "sealed": self._sealed,
            "skipped_silently": self._skipped,
            "disk_saves_never_committed": self._lost,
        }

    def close(self) -> None:
        """Remove its shared memory, which it leaves, and end its process."""
        engine = self._checkpointer._engine
        memory = engine._shm_handler.shared_memory
        if memory is not None:
            memory.unlink()
        if engine.saver_proc is not None:
            engine.saver_proc.kill()

    def _put(self, step: int, kind: StorageType) -> None:
        self._checkpointer.save_checkpoint(step, self.loop.dicts(), storage_type=kind)
        if self._checkpointer._engine._cached_step != step:
            self._skipped += 1
            raise Skipped(f"the save of step {step} was skipped")
        self._sealed += 1


if __name__ == "__main__":
    serve(DLRover())
