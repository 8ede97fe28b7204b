# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint: save, or async_save with a thread or a process (the argument)."""

from __future__ import annotations

import pathlib
import shutil
import sys
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from benchmarks.checkpoint_systems.system_process import Peer, serve
from benchmarks.checkpoint_systems.workload import Loop

KINDS = {"thread": AsyncCheckpointerType.THREAD, "process": AsyncCheckpointerType.PROCESS}


class Dcp(Peer):
    """A folder a step; the one before is removed."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._future: Any = None
        self._path: pathlib.Path | None = None

    def open(self, loop: Loop, folder: pathlib.Path) -> None:
        """A process group of one."""
        super().open(loop, folder)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def save(self, step: int) -> None:
        """Staged when it returns, or written."""
        old, self._path = self._path, self.folder / str(step)
        model, optimizer = get_state_dict(self.loop.model, self.loop.optimizer)
        state = {"model": model, "optimizer": optimizer}
        if self._kind == "sync":
            dcp.save(state, checkpoint_id=self._path)
        else:
            self._future = dcp.async_save(
                state, checkpoint_id=self._path, async_checkpointer_type=KINDS[self._kind]
            )
        if old is not None:
            shutil.rmtree(old)

    def settle(self) -> None:
        """Until the future is done."""
        if self._future is not None:
            self._future.result()

    def is_busy(self) -> bool:
        """As the future says."""
        return self._future is not None and not self._future.done()

    def restore(self, loop: Loop) -> None:
        """Into state dicts of the loop, in place."""
        model, optimizer = get_state_dict(loop.model, loop.optimizer)
        state = {"model": model, "optimizer": optimizer}
        dcp.load(state, checkpoint_id=self._path)
        set_state_dict(
            loop.model,
            loop.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )

    def close(self) -> None:
        """End the group."""
        self.settle()
        dist.destroy_process_group()


if __name__ == "__main__":
    serve(Dcp(sys.argv[1]))
