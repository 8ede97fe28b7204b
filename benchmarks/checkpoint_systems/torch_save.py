# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""torch.save into a file."""

from __future__ import annotations

import pathlib

import torch

from benchmarks.checkpoint_systems.system_process import Peer, serve
from benchmarks.checkpoint_systems.workload import Loop


class TorchSave(Peer):
    """A file a step; the one before is removed."""

    path: pathlib.Path | None = None

    def save(self, step: int) -> None:
        """Written when it returns."""
        path = self.folder / f"{step}.pt"
        torch.save(self.loop.dicts(), path)
        if self.path is not None:
            self.path.unlink()
        self.path = path

    def restore(self, loop: Loop) -> None:
        """Mapped, then copied."""
        assert self.path is not None
        loop.load(torch.load(self.path, mmap=True, weights_only=True))


if __name__ == "__main__":
    serve(TorchSave())
