# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Saves that follow each other quicker than an order to persist travels, on a busy machine."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import SlotSealed
from rover_kf.api.status import Ack
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from tests.support.pods import checkpoint_pod
from tests.support.pods.bare_trainer import Trainer
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

BYTES, BANDWIDTH = 256 << 10, 512 << 10
"""Of a rank's state, and bytes a second that are persisted: half a second for each step."""
DURABLE = 6
"""Steps that have to become durable while training saves."""


def _snapshot(step: int) -> bytes:
    layout = snapshot.plan([snapshot.Entry("step", "U8", (BYTES,), 1)], {})
    return snapshot.header(layout, {}) + step.to_bytes(4, "big") * (BYTES // 4)


class Rank:
    """A rank that saves every step as fast as it can.

    Args:
        pod: of the rank.
        rank: its number.
        collective: that all ranks wait in, once a step.
    """

    def __init__(
        self, pod: checkpoint_pod.Pod, rank: int, collective: threading.Barrier, world: int
    ) -> None:
        self._trainer = Trainer(pod, rank, world)
        self._collective, self._first = collective, rank % 2 == 0
        self._news: list[Seal] = []
        self._ended = threading.Event()
        self.seconds: list[float] = []
        """Of each save."""
        self._threads = [threading.Thread(target=self._train), threading.Thread(target=self._tell)]

    def start(self) -> None:
        self._trainer.restore(1)
        self._trainer.allocate(len(_snapshot(0)))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._collective.abort()
        for thread in self._threads:
            thread.join()

    def _train(self) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            for step in itertools.count(1):
                # Ranks save at different times: before a step's collective, or after it.
                if self._first:
                    self._save(step)
                self._collective.wait()
                if not self._first:
                    self._save(step)

    def _save(self, step: int) -> None:
        content, begun = _snapshot(step), time.monotonic()
        seal = self._trainer.seal(step, content, replicated=False)
        self.seconds.append(time.monotonic() - begun)
        self._news.append(seal)

    def _tell(self) -> None:
        """Report the newest save, as soon as the report before has arrived."""
        while not self._ended.wait(0.001):
            if self._news:
                seal = self._news[-1]
                self._news.clear()
                place = (0, seal.rank, seal.world_size, seal.state.round, seal.state)
                told = SlotSealed(*place, seal.slot, seal.length, replicated=False)
                self._trainer.link.request(names.PATH_SEALED, told, Ack, timeout=60)


@contextlib.contextmanager
def _busy_cores() -> Iterator[None]:
    """Two processes that compute without a pause."""
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def _durable_steps(storage: DirectoryStorage, found: dict[int, int]) -> dict[int, int]:
    """Steps on storage with their number of ranks; every byte of each is that step's."""
    for folder in storage.complete_folders():
        if folder.step in found:
            continue
        with contextlib.suppress(errors.StorageError):  # retention removes it meanwhile
            files = storage.load(folder).files
            read = [
                b"".join(map(bytes, storage.read_range(folder, file, 0, file.length)))
                for file in files
            ]
            assert all(content.endswith(_snapshot(folder.step)[-BYTES:]) for content in read)
            found[folder.step] = len(files)
    return found


@pytest.mark.parametrize("world", [1, 3])
def test_steps_become_durable_however_often_training_saves(tmp_path, world):
    """Every rank pins the same state, and no save waits for storage."""
    storage, found = DirectoryStorage(tmp_path / "pvc" / "demo"), {}
    settings = {"checkpoint_bandwidth": BANDWIDTH, "checkpoint_keep": 100}
    collective = threading.Barrier(world)
    with (
        checkpoint_pod.pods(tmp_path / "pods", world, storage=tmp_path / "pvc", **settings) as pods,
        _busy_cores(),
    ):
        ranks = [Rank(pod, rank, collective, world) for rank, pod in enumerate(pods)]
        with contextlib.ExitStack() as running:
            starts = [threading.Thread(target=rank.start) for rank in ranks]
            for start in starts:
                start.start()
            for start, rank in zip(starts, ranks, strict=True):
                start.join()
                running.callback(rank.stop)
            eventually(
                lambda: len(_durable_steps(storage, found)) >= DURABLE,
                within=200,
                what=f"{DURABLE} durable steps",
            )
            saves = [len(rank.seconds) for rank in ranks]
    middle = [statistics.median(rank.seconds) for rank in ranks]
    print(f"{saves} saves, {1e3 * max(middle):.1f} ms each in the middle; durable {sorted(found)}")
    assert set(found.values()) == {world}
    assert min(saves) > 10 * DURABLE
    assert max(middle) < BYTES / BANDWIDTH / 10
