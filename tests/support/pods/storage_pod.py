# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One pod beside a checkpoint folder: a real sidecar that coordinates, and the messages of the
training process."""

from __future__ import annotations

import pathlib
import time
import types
import urllib.request

from rover_kf.api import names
from rover_kf.api.status import Ack
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from tests.support.pods.bare_trainer import Trainer
from tests.support.pods.sidecar_pods import SidecarPod

LONGEST_SAVE_SECONDS = 10.0


class StoragePod:
    """A sidecar, a trainer, and what they store.

    Args:
        folder: of the job.
        place: its addresses' first three numbers.
        storage: the checkpoint folder.
        size: bytes of the state.
    """

    def __init__(
        self, folder: pathlib.Path, place: str, storage: pathlib.Path, size: int = 2 << 20
    ) -> None:
        settings = {
            names.ENV_NODES: "1",
            names.ENV_MAX_NODES: "1",
            names.ENV_ARENA_BYTES: str(8 * size),
            "checkpoint.path": str(storage),
            "checkpoint.persist-seconds": "0",
        }
        address = f"{place}.1"
        self._size = size
        self.sidecar = SidecarPod(folder, 0, address, address, settings=settings).start().ready()
        home = types.SimpleNamespace(volume_path=self.sidecar.home)
        self.trainer = Trainer(types.SimpleNamespace(settings=home))
        self.stored = DirectoryStorage(storage / "train")

    def save(self, step: int) -> float:
        """Save a state that is the step's own; the seconds until it was safe in memory."""
        begun = time.monotonic()
        self.trainer.save(step, self._state(step))
        assert self.trainer.wait(step, "memory").done
        spent = time.monotonic() - begun
        assert spent < LONGEST_SAVE_SECONDS
        return spent

    def hangs(self) -> str:
        """The Event that says that storage does."""
        told = self.sidecar.status().events
        return next((event.message for event in told if " hangs: no answer" in event.message), "")

    def silent_seconds(self) -> float:
        """The metric."""
        url = f"http://{self.sidecar.address}:{names.PORT}{names.PATH_METRICS}"
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        lines = (line for line in text.splitlines() if "storage_silent_seconds{" in line)
        return float(next(lines).split()[-1])

    def durable(self, step: int) -> None:
        """Wait until a step is, and read it back."""
        assert self.trainer.wait(step, "durable") == Ack()
        self.check(step)

    def check(self, step: int) -> None:
        """Every stored byte of a step that is durable."""
        folder = next(found for found in self.stored.complete_folders() if found.step == step)
        (file,) = self.stored.verify(folder).files
        pieces = self.stored.read_range(folder, file, 0, file.length)
        assert b"".join(map(bytes, pieces)) == self._state(step)

    def _state(self, number: int) -> bytes:
        """A snapshot of one tensor."""
        layout = snapshot.plan([snapshot.Entry("content", "U8", (self._size,), 1)], {})
        return snapshot.header(layout, {}) + bytes([number]) * self._size
