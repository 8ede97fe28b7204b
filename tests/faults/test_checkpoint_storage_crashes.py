# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Persist and commit, stopped after each single system call: what is left is whole or nothing."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil

import pytest

from rover_kf import errors
from rover_kf.api.checkpoints import RankPersisted
from rover_kf.checkpoint import commit
from rover_kf.checkpoint.format import chunks, manifest
from rover_kf.checkpoint.storage import directory
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.syscalls import Syscalls
from tests.support.states import identities

_CALLS = (
    "make_folder", "create", "write", "sync", "close", "link", "sync_folder", "remove",
    "remove_folder",
)  # fmt: skip


class Crash(BaseException):
    """The process died here."""


class Failing(Syscalls):
    """Real calls, until the one that ends the process (or is refused)."""

    def __init__(self, last: int | None, failure: BaseException | None = None) -> None:
        self.done = 0
        self.trace: list[str] = []
        self._last, self._failure = last, failure

    def _call(self, name: str, *arguments: object, **named: object) -> object:
        dead = self._last is not None and self.done >= self._last
        if dead and (self._failure is None or self.done == self._last) and name != "close":
            self.done += 1
            raise self._failure or Crash
        self.done += 1
        self.trace.append(name)
        return getattr(super(), name)(*arguments, **named)

    def make_folder(self, path):
        return self._call("make_folder", path)

    def create(self, path, *, direct=False):
        return self._call("create", path, direct=direct)

    def sync(self, descriptor):
        return self._call("sync", descriptor)

    def close(self, descriptor):
        return self._call("close", descriptor)

    def link(self, source, target):
        return self._call("link", source, target)

    def sync_folder(self, path):
        return self._call("sync_folder", path)

    def remove(self, path):
        return self._call("remove", path)

    def remove_folder(self, path):
        return self._call("remove_folder", path)

    def write(self, descriptor, data):
        # In pieces, so that a crash falls between two writes of one file.
        return self._call("write", descriptor, data[: max(len(data) // 3, 1)])


def _content(step: int, rank: int) -> bytes:
    return bytes([(step * 7 + rank) % 256]) * 3000


def _persist(storage: DirectoryStorage, source: pathlib.Path, step: int, world: int = 2) -> None:
    """What the sidecars of all ranks and the coordinator do for one step."""
    ledger = commit.CommitLog()
    for rank in range(world):
        source.write_bytes(_content(step, rank))
        descriptor = os.open(source, os.O_RDONLY)
        try:
            file = storage.write_rank(
                storage.folder(identities.state(step)), rank, chunks.read(descriptor, 0, 3000), 3000
            )
        finally:
            os.close(descriptor)
        verdict = commit.report(
            ledger,
            RankPersisted(
                pod="pod",
                rank=rank,
                world_size=world,
                replicated=False,
                file=file.name,
                file_bytes=file.length,
                checksum=file.checksum,
                state=identities.state(step),
                origin=identities.state(step),
            ),
            owner="default/job",
            now=0.0,
        )
        ledger = verdict.log
    assert verdict.manifest is not None
    storage.write_manifest(verdict.manifest)
    storage.collect(1, current=identities.round_id(1))


def _restored(root: pathlib.Path) -> int:
    """The step that a restore would take, its bytes checked."""
    storage = DirectoryStorage(root)
    for folder in reversed(storage.complete_folders()):
        content = storage.verify(folder)
        for file in content.files:
            found = (root / folder.name / file.name).read_bytes()
            assert found == _content(content.state.step, file.rank)
        return content.state.step
    return 0


def _calls(tmp_path: pathlib.Path) -> list[str]:
    files = Failing(None)
    root = tmp_path / "count"
    _persist(DirectoryStorage(root), tmp_path / "slot", 1)
    _persist(DirectoryStorage(root, files), tmp_path / "slot", 2)
    assert set(files.trace) == set(_CALLS)
    return files.trace


def test_a_crash_after_any_call_leaves_a_whole_checkpoint(tmp_path):
    """Step 1 is durable; persisting 2 stops after call n, for every n: 1 or 2 restores, whole."""
    total = len(_calls(tmp_path))
    found = []
    for point in range(total + 1):
        root = tmp_path / f"at-{point}"
        _persist(DirectoryStorage(root), tmp_path / "slot", 1)
        try:
            _persist(DirectoryStorage(root, Failing(point)), tmp_path / "slot", 2)
        except Crash:
            assert point < total
        found.append(_restored(root))
        # Whatever was left, the next persist works and tidies it up.
        _persist(DirectoryStorage(root), tmp_path / "slot", 3)
        assert _restored(root) == 3
        assert [folder.step for folder in DirectoryStorage(root).folders()] == [3]
        assert not list(root.rglob("*.part"))
        shutil.rmtree(root)
    print(f"{total + 1} crash points, {found.count(1)} before the commit")
    assert found == sorted(found)
    assert set(found) == {1, 2}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_refusal_of_any_call_is_an_error_and_costs_nothing(tmp_path, number):
    """Every call refused once: StorageError with the cause; what was durable stays restorable."""
    calls = _calls(tmp_path)
    for point in range(len(calls)):
        root = tmp_path / f"at-{point}"
        _persist(DirectoryStorage(root), tmp_path / "slot", 1)
        failure = OSError(number, os.strerror(number))
        files = Failing(point, failure)
        if calls[point] == "close":
            _persist(DirectoryStorage(root, files), tmp_path / "slot", 2)
        else:
            with pytest.raises(errors.StorageError) as refusal:
                _persist(DirectoryStorage(root, files), tmp_path / "slot", 2)
            assert refusal.value.__cause__ is failure
        assert _restored(root) in (1, 2)
        shutil.rmtree(root)


@pytest.mark.parametrize(
    "look",
    [
        DirectoryStorage.complete_folders,
        lambda storage: storage.collect(1, current=identities.round_id(1)),
    ],
)
def test_a_look_that_is_refused_once_is_an_error_of_ours(tmp_path, monkeypatch, look):
    """As NFS does with a handle that went stale; nothing is removed, the next look is answered."""
    storage = DirectoryStorage(tmp_path / "job")
    for step in (1, 2):
        _persist(storage, tmp_path / "slot", step)
    left = storage.folders()
    stale = [OSError(errno.ESTALE, os.strerror(errno.ESTALE))]
    lstat = pathlib.Path.lstat

    def once(path: pathlib.Path) -> os.stat_result:
        if stale and path.name == manifest.NAME:
            raise stale.pop()
        return lstat(path)

    monkeypatch.setattr(pathlib.Path, "lstat", once)
    with pytest.raises(errors.StorageError, match="Stale file handle"):
        look(storage)
    assert storage.complete_folders() == left
    look(storage)


def test_what_somebody_put_into_a_checkpoint_goes_with_it(tmp_path):
    """Folders of a notebook's server, say; where links lead to stays."""
    storage, own = DirectoryStorage(tmp_path / "job"), tmp_path / "own"
    _persist(storage, tmp_path / "slot", 1)
    own.mkdir()
    (own / "kept").touch()
    added = storage.root / storage.folders()[0].name / ".ipynb_checkpoints"
    (added / "deeper").mkdir(parents=True)
    (added / "deeper" / "a file").touch()
    (added / "a link").symlink_to(own)
    (added.parent / "another link").symlink_to(own)
    _persist(storage, tmp_path / "slot", 2)
    assert [folder.step for folder in storage.folders()] == [2]
    assert [path.name for path in own.iterdir()] == ["kept"]


def test_a_folder_that_cannot_be_removed_keeps_no_other(tmp_path):
    """The oldest, at each retention: the others go, and it is named."""

    class Stuck(Syscalls):
        def remove(self, path):
            if path.parent.name.startswith("step-000000000001-"):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
            super().remove(path)

    storage = DirectoryStorage(tmp_path / "job")
    for step in (1, 2, 3):
        root = tmp_path / f"job-{step}"
        _persist(DirectoryStorage(root), tmp_path / "slot", step)
        storage.root.mkdir(exist_ok=True)
        (folder,) = DirectoryStorage(root).folders()
        (root / folder.name).rename(storage.root / folder.name)
    stuck = DirectoryStorage(storage.root, Stuck())
    leftover = storage.root / storage.folders()[-1].name / "rank-00007.safetensors.part"
    leftover.touch()
    for _ in range(2):
        with pytest.raises(errors.StorageError, match="step-000000000001-1 cannot be removed"):
            stuck.collect(1, current=identities.round_id(1))
        assert [folder.step for folder in storage.complete_folders()] == [1, 3]
        assert not leftover.exists()
    assert _restored(storage.root) == 3


@pytest.mark.parametrize("step", [2, 5])
@pytest.mark.parametrize("shut", ["step-00000000000{}-1", manifest.NAME])
def test_what_cannot_be_read_stops_no_retention(tmp_path, monkeypatch, shut, step):
    """Another user's folder, a bad sector below a manifest: it stays and is named, an older one
    stays in its place, the others go; whether it is the newest or not."""
    storage = DirectoryStorage(tmp_path / "job")
    for number in (1, 2, 3, 4, 5):
        root = tmp_path / f"job-{number}"
        _persist(DirectoryStorage(root), tmp_path / "slot", number)
        storage.root.mkdir(exist_ok=True)
        (folder,) = DirectoryStorage(root).folders()
        (root / folder.name).rename(storage.root / folder.name)

    class Shut(Syscalls):
        def size(self, path):
            if path.parent.name == shut.format(step):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return super().size(path)

    opened = directory._open_file

    def open_late(path):
        if (path.name, path.parent.name[:17]) == (shut, f"step-{step:012d}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path)

    monkeypatch.setattr(directory, "_open_file", open_late)
    for _ in range(2):
        with pytest.raises(errors.StorageError, match=f"step-{step:012d}-1.* cannot be "):
            DirectoryStorage(storage.root, Shut()).collect(2, current=identities.round_id(1))
        left = [folder.step for folder in storage.folders()]
        assert left == ([2, 4, 5] if step == 2 else [3, 4, 5])


@pytest.mark.parametrize("call", ["remove", "sync_folder", "remove_folder"])
def test_what_somebody_else_removes_meanwhile_is_no_refusal(tmp_path, call):
    """By hand, or by ``checkpoint rm``: it is gone, as it should be."""

    class Overtaken(Syscalls):
        def _first(self, name, path):
            old = storage.root / "step-000000000001-1"
            if name == call and old.exists() and old in {path, path.parent}:
                shutil.rmtree(old)
            getattr(super(), name)(path)

        def remove(self, path):
            self._first("remove", path)

        def sync_folder(self, path):
            self._first("sync_folder", path)

        def remove_folder(self, path):
            self._first("remove_folder", path)

    storage = DirectoryStorage(tmp_path / "job")
    _persist(storage, tmp_path / "slot", 1)
    shutil.copytree(storage.root, tmp_path / "kept")
    _persist(storage, tmp_path / "slot", 2)
    (tmp_path / "kept" / "step-000000000001-1").rename(storage.root / "step-000000000001-1")
    gone = DirectoryStorage(storage.root, Overtaken()).collect(1, current=identities.round_id(1))
    assert [folder.step for folder in gone] == [1]
    assert [folder.step for folder in storage.folders()] == [2]


def test_damaged_files_are_refused_and_named(tmp_path):
    """Truncated at any of many places, any bit flipped, missing: CorruptSnapshot with the file."""
    storage = DirectoryStorage(tmp_path / "job")
    _persist(storage, tmp_path / "slot", 1)
    (folder,) = storage.complete_folders()
    for path in sorted((storage.root / folder.name).iterdir()):
        content = path.read_bytes()
        damaged = [content[:size] for size in range(0, len(content), 97)]
        for place in range(0, len(content), 53):
            flipped = bytearray(content)
            flipped[place] ^= 1 << (place % 8)
            damaged.append(bytes(flipped))
        for wrong in damaged:
            path.write_bytes(wrong)
            with pytest.raises(errors.CorruptSnapshot, match=path.name):
                storage.verify(folder)
        path.write_bytes(content)
        storage.verify(folder)
    (storage.root / folder.name / "rank-00001.safetensors").unlink()
    with pytest.raises(errors.CorruptSnapshot, match=r"rank-00001\.safetensors is missing"):
        storage.load(folder)
