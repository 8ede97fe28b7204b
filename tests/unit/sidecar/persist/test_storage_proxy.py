# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A folder's checkpoints through another process: the same as without one."""

from __future__ import annotations

import dataclasses
import errno
import mmap
import os
import pathlib
import socket
import threading
from unittest import mock

import crc32c
import pytest

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.checkpoint.format.chunks import CHUNK_BYTES
from rover_kf.checkpoint.format.manifest import Manifest
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.rank_content import SlotContent
from rover_kf.checkpoint.storage.rate_limit import RateLimiter
from rover_kf.checkpoint.storage.retention import RetentionExceptions
from rover_kf.sidecar.persist import worker_main, worker_protocol
from rover_kf.sidecar.persist.storage_proxy import StorageProxy
from rover_kf.sidecar.persist.worker_pool import StorageWorkerPool
from tests.support.states import identities
from tests.support.waiting import eventually

LENGTH = (9 << 20) + 5


@pytest.fixture
def slot(tmp_path):
    path = tmp_path / "slot-0"
    path.write_bytes(os.urandom(LENGTH + 100))
    return path


@pytest.fixture
def storage(tmp_path):
    made = StorageProxy(tmp_path / "pvc" / "demo", RateLimiter(0))
    yield made
    made.close()


def content(slot: pathlib.Path) -> SlotContent:
    return SlotContent(slot, LENGTH, ((0, 4096), (5000, LENGTH)), b"a header")


def joined(pieces):
    return b"".join(map(bytes, pieces))


def bytes_of(slot: pathlib.Path) -> bytes:
    found = slot.read_bytes()
    return b"a header" + found[:4096] + found[5000:LENGTH]


def test_everything_that_a_sidecar_asks_of_a_folder(storage, slot, tmp_path):
    """Written, committed, listed, read in parts, verified, retained: as the folder itself says."""
    plain = DirectoryStorage(tmp_path / "pvc" / "demo")
    assert storage.folders() == storage.complete_folders() == ()
    for step in (1, 2, 3):
        folder = storage.folder(identities.state(step, 7))
        file, seconds = storage.write_slot(folder, 0, content(slot))
        assert (file.length, file.checksum) == (LENGTH - 904 + 8, crc32c.crc32c(bytes_of(slot)))
        assert seconds > 0
        made = Manifest(
            "",
            identities.state(step, 7),
            identities.state(step, 7),
            world_size=1,
            replicated=True,
            files=(file,),
            metrics={"loss": float(step)},
        )
        assert storage.write_manifest(made) == folder
        storage.ensure_durable(folder)
        assert storage.load(folder) == storage.verify(folder) == plain.verify(folder) == made
        assert storage.sizes(folder) == plain.sizes(folder)
    assert joined(storage.read_range(folder, file, 0, file.length)) == bytes_of(slot)
    assert joined(storage.read_range(folder, file, 3, 10)) == bytes_of(slot)[3:13]
    spare = RetentionExceptions(every=2)
    assert [
        gone.step for gone in storage.collect(1, current=identities.round_id(7), spare=spare)
    ] == [1]
    assert storage.complete_folders() == plain.complete_folders() == plain.folders()
    storage.remove(folder)
    assert [left.step for left in storage.folders()] == [2]


def test_refusals_are_those_of_the_folder(storage, slot, tmp_path):
    """Their class and their words; a file that is damaged, a manifest that is not there, a folder
    that cannot be made. A reader that stops half way spoils nothing for the next call."""
    folder = storage.folder(identities.state(1))
    file, _ = storage.write_slot(folder, 0, content(slot))
    with pytest.raises(errors.StorageError, match="No such file"):
        storage.read_manifest(folder)
    storage.write_manifest(
        Manifest(
            "",
            identities.state(1),
            identities.state(1),
            world_size=1,
            replicated=True,
            files=(file,),
        )
    )
    for _ in storage.read_range(folder, file, 0, file.length):
        break
    path = tmp_path / "pvc" / "demo" / folder.name / file.name
    with path.open("r+b") as damaged:
        damaged.seek(5 << 20)
        damaged.write(b"x" * 9)
    with pytest.raises(errors.CorruptSnapshot, match="has CRC-32C"):
        storage.verify(folder)
    short = SlotContent(slot, LENGTH + 4096, ((0, LENGTH),))
    with pytest.raises(errors.CorruptSnapshot, match="were sealed"):
        storage.write_slot(storage.folder(identities.state(3)), 0, short)
    with pytest.raises(errors.CheckpointExists, match="is a checkpoint already"):
        storage.write_slot(folder, 0, content(slot))
    (tmp_path / "pvc" / "demo" / storage.folder(identities.state(2)).name).write_text("in the way")
    with pytest.raises(errors.StorageError, match="cannot be written"):
        storage.write_slot(storage.folder(identities.state(2)), 0, content(slot))


SLOW = """
import pathlib, time
look = pathlib.Path.lstat
def slowly(path):
    time.sleep(0.05)
    return look(path)
pathlib.Path.lstat = slowly
"""
"""In each process of a storage: a look takes as long as on a server that is far away."""


def test_many_looks_that_are_slow_are_no_hang(tmp_path, monkeypatch):
    """Together they take longer than one word is waited for; each is told."""
    plain = DirectoryStorage(tmp_path / "demo")
    steps = range(1, 21)
    for step in steps:
        files = tuple(
            plain.write_rank(plain.folder(identities.state(step)), rank, [memoryview(b"state")], 5)
            for rank in range(2)
        )
        plain.write_manifest(
            Manifest(
                "",
                identities.state(step),
                identities.state(step),
                world_size=2,
                replicated=True,
                files=files,
            )
        )
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW)
    path = os.pathsep.join([str(tmp_path / "slow"), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    storage = StorageProxy(tmp_path / "demo", RateLimiter(0), timeouts=(1, 1))
    try:
        assert [folder.step for folder in storage.complete_folders()] == list(steps)
        gone = storage.collect(
            1, current=identities.round_id(1), spare=RetentionExceptions(every=2)
        )
        assert [folder.step for folder in gone] == list(steps)[::2]
        assert storage.silent_seconds == 0
    finally:
        storage.close()


def test_what_the_system_refuses_is_the_storages_or_the_slots(storage, slot, tmp_path, monkeypatch):
    """A slot that is gone is torn; what a listing comes upon is a refusal of the storage."""
    gone = dataclasses.replace(content(slot), slot=tmp_path / "gone")
    with pytest.raises(errors.CorruptSnapshot, match="No such file"):
        storage.write_slot(storage.folder(identities.state(1)), 0, gone)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parent = worker_main._ParentPipe(theirs)
        desk = worker_main._RequestLoop(tmp_path / "demo", parent, mmap.mmap(-1, CHUNK_BYTES))
        refusal = OSError(errno.EIO, os.strerror(errno.EIO))
        monkeypatch.setattr(DirectoryStorage, "complete_folders", mock.Mock(side_effect=refusal))
        desk.handle({"call": "whole"}, b"")
        words, _ = worker_protocol.receive(ours)
    assert words == {"error": "StorageError", "message": str(refusal)}


def test_its_process_ends_with_the_sidecar(storage, slot):
    """Closed, no process is left, and what is asked is refused; a killed one costs one call."""
    others = _children()  # a test's before, which were killed and go
    storage.folders()
    (child,) = _children() - others
    os.kill(child, 9)
    eventually(lambda: _state(child) in ("Z", ""), what="the process has ended")
    assert storage.folders() == ()
    (child,) = _children() - others
    storage.close()
    eventually(lambda: _state(child) in ("Z", ""), what="the process has ended")
    with pytest.raises(errors.StorageError, match="ends"):
        storage.write_slot(storage.folder(identities.state(1)), 0, content(slot))


def test_a_process_that_is_killed_is_no_hang(storage, slot):
    """As by the kernel, for memory: the refusal says how it ended, not to look at the volume."""
    others = _children()
    assert storage.folders() == ()
    (child,) = _children() - others
    killed = dataclasses.replace(content(slot), check_cancelled=lambda: os.kill(child, 9))
    with pytest.raises(errors.StorageError, match=r"has ended with exit code -9"):
        storage.write_slot(storage.folder(identities.state(1, 7)), 0, killed)
    assert storage.silent_seconds == 0
    assert storage.write_slot(storage.folder(identities.state(1, 7)), 0, content(slot))


def test_a_writer_whose_sidecar_is_gone_changes_nothing_more(slot, tmp_path, monkeypatch):
    """What it has begun stays as it is: the next sidecar may be writing under the same name."""
    monkeypatch.setattr(worker_main, "_NOTIFY_SECONDS", float("inf"))
    ours, theirs = socket.socketpair()
    buffer = mmap.mmap(-1, CHUNK_BYTES)
    desk = worker_main._RequestLoop(tmp_path / "demo", worker_main._ParentPipe(theirs), buffer)
    stored_as = codec.encode(identities.state(1))
    words = {"call": "write_rank", "state": stored_as, "rank": 0, "slot": str(slot)}
    ours.close()
    with pytest.raises(worker_main._ParentGone), theirs:
        desk.handle({**words, "slot_bytes": LENGTH, "ranges": [[0, LENGTH]]}, b"a header")
    (left,) = (tmp_path / "demo" / "step-000000000001-1").iterdir()
    assert left.match("rank-00000.safetensors.*.part")


@pytest.mark.parametrize("spare_seconds", [0.0, 60.0])
def test_many_at_a_time_are_no_hang(storage, monkeypatch, spare_seconds):
    """As where a pod's ranks restore together, whether processes that have answered are kept for
    the next call or ended: nobody is refused. One that is left is enough afterwards."""
    monkeypatch.setattr("rover_kf.sidecar.persist.worker_pool.SPARE_SECONDS", spare_seconds)
    refused: list[errors.RoverError] = []
    others = _children()

    def ask() -> None:
        for _ in range(10):
            try:
                storage.folders()
            except errors.RoverError as error:  # noqa: PERF203 - each is counted
                refused.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == []
    assert storage.silent_seconds == 0
    monkeypatch.setattr("rover_kf.sidecar.persist.worker_pool.SPARE_SECONDS", 0.0)
    one = lambda: storage.folders() == () and len(_children() - others) == 1  # noqa: E731 - a condition
    eventually(one, what="one process is left")


def test_two_that_are_held_are_a_hang(tmp_path, monkeypatch):
    """Killed while they were at work, they stay in the kernel: calls are refused until one goes."""
    monkeypatch.setattr("rover_kf.sidecar.persist.worker_pool.HELD_SECONDS", 0.0)
    children = StorageWorkerPool(tmp_path)
    held = []
    for _ in range(2):
        with children.acquire() as child:
            monkeypatch.setattr(child, "has_exited", lambda: False)
            child.is_idle = False
            held.append(child)
    with pytest.raises(errors.StorageError, match="hangs: no answer for"), children.acquire():
        pass
    monkeypatch.undo()
    eventually(held[0].has_exited, what="the kernel lets go")
    with children.acquire():
        pass
    children.close()


def _children() -> set[int]:
    tasks = list(pathlib.Path("/proc/self/task").iterdir())
    found = {int(word) for task in tasks for word in _text(task / "children").split()}
    lines = {pid: _text(pathlib.Path(f"/proc/{pid}/cmdline")) for pid in found}  # a zombie has none
    return {pid for pid, line in lines.items() if "persist.worker_main" in line}


def _state(pid: int) -> str:
    return _text(pathlib.Path(f"/proc/{pid}/stat")).rpartition(")")[2].strip()[:1]


def _text(path: pathlib.Path) -> str:
    """What the kernel says there; nothing once the thread or the process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
