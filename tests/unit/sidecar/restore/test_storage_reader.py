# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that read a checkpoint from storage: who verifies what, and when a restore is given up."""

from __future__ import annotations

import asyncio
import pathlib
import socket
import threading
import time

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    RestoreReply,
    RestoreRequest,
    RestoreStepReply,
    StorageReadReply,
)
from rover_kf.sidecar import checkpoint_service
from rover_kf.sidecar.restore import storage_reader
from rover_kf.sidecar.restore.storage_reader import StorageReader
from rover_kf.trainer.sidecar_client import SidecarClient
from tests.support.pods import checkpoint_pod
from tests.support.pods.bare_trainer import Trainer
from tests.support.pods.checkpoint_world import World, in_memory, running
from tests.support.states import identities
from tests.support.states.synthetic_states import Form


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Coordinator:
    """Answers that the other rank has read more, until it has not."""

    def __init__(self, clock: Clock, reads: list[int]) -> None:
        self._clock, self._reads = clock, reads
        self.reports = 0

    async def call_coordinator(self, path, _report, reply):
        assert (path, reply) == (names.PATH_COMMIT_READ, StorageReadReply)
        self.reports += 1
        self._clock.now += 600.0
        count = self._reads.pop(0) if self._reads else -1
        return StorageReadReply(count < 0, read_bytes=max(count, 0), missing=(1,))


def _reader(coordinator: Coordinator, progress: list[float], clock: Clock) -> StorageReader:
    choice = RestoreStepReply(identities.state(7), "storage", path="/pvc/demo/step-000000000007-1")
    request = RestoreRequest(0, 0, 2, identities.round_id(2))
    return StorageReader(
        coordinator, request, choice, lambda: progress.append(clock.now), pytest.fail
    )


async def _nothing():
    return []


async def _sealed():
    return "a seal"


def test_a_restore_takes_as_long_as_ranks_read(monkeypatch):
    """Forty times ten minutes, in each of which the other rank reads a byte."""
    clock, progress = Clock(), []
    monkeypatch.setattr(storage_reader, "time", clock)
    coordinator = Coordinator(clock, list(range(1, 41)))
    reader = _reader(coordinator, progress, clock)
    assert asyncio.run(reader.read(_sealed, _nothing)) == "a seal"
    assert progress == [600.0 * number for number in range(1, 41)]


def test_a_restore_without_progress_is_given_up(monkeypatch):
    """Half an hour after the last byte; the error names who has not read."""
    clock, progress = Clock(), []
    monkeypatch.setattr(storage_reader, "time", clock)
    coordinator = Coordinator(clock, [5, 9] + [9] * 99)
    with pytest.raises(errors.CheckpointError, match=r"ranks \[1\] have read nothing of .*1800 s"):
        asyncio.run(_reader(coordinator, progress, clock).read(_sealed, _nothing))
    assert (coordinator.reports, progress) == (5, [600.0, 1200.0])


def test_the_coordinator_reads_no_tensors(monkeypatch):
    """Two ranks with states of their own: each file is read once, by its rank."""
    with in_memory() as memory, running() as runner:
        form = Form("own")
        world = World(memory / "pods", memory / "pvc", form, runner)
        world.begin()
        world.persist(1, 1)
        world.forget()
        read: dict[str, int] = {}
        original = world.storage.read_range

        def count(folder, file, offset, length):
            for piece in original(folder, file, offset, length):
                read[file.name] = read.get(file.name, 0) + len(piece)
                yield piece

        monkeypatch.setattr(world.storage, "read_range", count)
        monkeypatch.setattr(world.storage, "verify", lambda folder: pytest.fail(f"reads {folder}"))
        assert world.restore(2) == (1, 1)
        for path in (memory / "pvc" / "demo").glob("step-*/*.safetensors"):
            assert path.stat().st_size <= read[path.name] < 1.5 * path.stat().st_size


def test_all_ranks_go_back_where_one_finds_damage():
    """Only rank 1 reads the damaged file; rank 0 has its part in memory by then."""
    with in_memory() as memory, running() as runner:
        world = World(memory / "pods", memory / "pvc", Form("own"), runner, keep=2)
        world.begin()
        world.persist(1, 1)
        world.persist(2, 1)
        world.forget()
        path = next((memory / "pvc" / "demo").glob("step-000000000002-*/rank-00001*"))
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        assert world.restore(2) == (1, 1)
        (warning,) = world.warnings()
        assert "step-000000000002-1 cannot be restored" in warning
        assert "rank-00001.safetensors has CRC-32C" in warning
        assert world.restore(3) == (1, 1), "the next round passes it over"


def test_a_process_waits_as_long_as_interim_responses_come(tmp_path):
    """The limit is on silence: the answer comes after three times as long."""
    path = tmp_path / names.SOCKET
    path.parent.mkdir(parents=True)
    body = b'{"state":null,"source":"none"}'

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            pause = threading.Event()
            for _ in range(6):
                pause.wait(0.5)
                connection.sendall(checkpoint_service.INTERIM_RESPONSE)
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        begun = time.monotonic()
        request = RestoreRequest(0, 0, 1, identities.round_id(1))
        found = SidecarClient(tmp_path).request(
            names.PATH_RESTORE, request, RestoreReply, timeout=2.0
        )
        thread.join()
    assert found == RestoreReply(None, "none")
    assert time.monotonic() - begun >= 3.0


def test_a_sidecar_sends_interim_responses_while_ranks_read():
    """One in five minutes at most, into the connection of the process."""
    clock, sent = Clock(), []

    class Request:
        transport = type("Transport", (), {"write": staticmethod(sent.append)})

    responses = checkpoint_service.InterimResponses(Request(), clock.monotonic)
    for clock.now in (10.0, 299.0, 300.0, 301.0, 599.0, 601.0):
        responses.send()
    assert sent == [checkpoint_service.INTERIM_RESPONSE] * 2


def test_the_real_sidecars_restore_from_storage(tmp_path):
    """Over their sockets, after the memory of both pods is lost."""
    storage = tmp_path / "pvc"
    states = [Form("own").bytes_of(3, 1, rank) for rank in (0, 1)]

    def both(call):
        threads = [threading.Thread(target=call, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with checkpoint_pod.pods(tmp_path / "first", 2, storage=storage) as pods:
        trainers = [Trainer(pod, rank, 2) for rank, pod in enumerate(pods)]
        both(lambda rank: trainers[rank].restore(1))
        for rank, trainer in enumerate(trainers):
            trainer.save(3, states[rank], replicated=False)
        assert trainers[0].wait(3, "durable").done
    with checkpoint_pod.pods(tmp_path / "second", 2, storage=storage) as pods:
        trainers = [Trainer(pod, rank, 2) for rank, pod in enumerate(pods)]
        found: dict[int, RestoreReply] = {}
        both(lambda rank: found.update({rank: trainers[rank].restore(1)}))
        for rank, reply in found.items():
            assert (reply.step, reply.source) == (3, "storage")
            content = pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]
            assert Form("own").check(content, 3, rank) == 1
