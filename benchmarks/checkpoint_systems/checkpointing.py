# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""torch_checkpointing's manager; direct I/O off, which its writer gets EINVAL for on ext4."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

from torch_checkpointing.checkpoint_manager import CheckpointManager
from torch_checkpointing.config import AsyncCheckpointSaverConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

from benchmarks.checkpoint_systems.system_process import Peer, serve
from benchmarks.checkpoint_systems.workload import Loop


class TorchCheckpointing(Peer):
    """A folder a step; the one before is removed."""

    _future: Any = None
    _path: pathlib.Path | None = None

    def open(self, loop: Loop, folder: pathlib.Path) -> None:
        """With its own defaults otherwise."""
        super().open(loop, folder)
        self._manager = CheckpointManager(
            CheckpointManager.Config(
                save=AsyncCheckpointSaverConfig(),
                storage_config=LocalFileSystemStorageConfig(use_direct_io=False),
            )
        )

    def save(self, step: int) -> None:
        """Being staged when it returns."""
        old, self._path = self._path, self.folder / str(step)
        self._future = self._manager.save(str(self._path), self.loop.dicts())
        if old is not None:
            shutil.rmtree(old)

    def before_step(self) -> None:
        """The manager's lock waits for the staging."""
        with self._manager.lock():
            pass

    def settle(self) -> None:
        """Until the future is done."""
        if self._future is not None:
            self._future.result()

    def is_busy(self) -> bool:
        """As the future says."""
        return self._future is not None and not self._future.done()

    def restore(self, loop: Loop) -> None:
        """State dicts, then the objects."""
        assert self._path is not None
        into: dict[str, Any] = {"model": loop.model.state_dict(), "optimizer": None}
        loop.load(dict(self._manager.load(str(self._path), into=into)))

    def close(self) -> None:
        """End its process."""
        self._manager.close()


if __name__ == "__main__":
    serve(TorchCheckpointing())
