# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""torchsnapshot's async_take."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import torchsnapshot

from benchmarks.checkpoint_systems.system_process import Peer, serve
from benchmarks.checkpoint_systems.workload import Loop


class TorchSnapshot(Peer):
    """A folder a step; the one before is removed."""

    _pending: Any = None
    _path: pathlib.Path | None = None

    def save(self, step: int) -> None:
        """Staged when it returns."""
        old, self._path = self._path, self.folder / str(step)
        self._pending = torchsnapshot.Snapshot.async_take(str(self._path), self.loop.state)
        if old is not None:
            shutil.rmtree(old)

    def settle(self) -> None:
        """Until it is taken."""
        if self._pending is not None:
            self._pending.wait()

    def is_busy(self) -> bool:
        """As it says."""
        return self._pending is not None and not self._pending.done()

    def restore(self, loop: Loop) -> None:
        """Into the objects."""
        torchsnapshot.Snapshot(str(self._path)).restore(loop.state)


if __name__ == "__main__":
    serve(TorchSnapshot())
