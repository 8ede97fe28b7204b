# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A writer is given up in a call that the kernel carries out later, during the next attempt.

A folder that hangs does so: who waits in it is killed, and what was asked of it may still be done
once it answers. At worst the next attempt is refused; what it says is durable has its own bytes.
Where the late call was the last one, that attempt has made the checkpoint, and it stays.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Callable

import pytest

from rover_kf import errors
from rover_kf.checkpoint.format.manifest import Manifest
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.syscalls import Syscalls
from tests.support.pods.checkpoint_world import in_memory
from tests.support.states import identities

GIVEN_UP, NEXT = b"1" * (3 * 4096 + 100), b"2" * (2 * 4096 + 50)
"""Other bytes and another length: what of one lands in the other is seen."""


class Killed(BaseException):
    """The process was killed; its call is with the kernel."""


class Late:
    """What the kernel has still to do, once, of a process that is gone."""

    def __init__(self) -> None:
        self.call: Callable[[], object] | None = None
        self.file = -1

    def happen(self) -> None:
        """Do it; nobody hears of a refusal."""
        if self.call is None:
            return
        call, self.call = self.call, None
        with contextlib.suppress(OSError):
            call()
        if self.file >= 0:
            os.close(self.file)


class Stepwise(Syscalls):
    """Real calls; ``before`` is told the number of each and may end the process."""

    def __init__(self, late: Late, before: Callable[[int], None]) -> None:
        self.late, self.before, self.calls = late, before, 0

    def _next(self, call: Callable[[], object], file: int = -1) -> object:
        self.calls += 1
        try:
            self.before(self.calls)
        except Killed:
            self.late.call = call
            # The kernel has the file open, whoever has closed it.
            self.late.file = os.dup(file) if file >= 0 else -1
            raise
        return call()

    def make_folder(self, path):
        return self._next(lambda: Syscalls.make_folder(self, path))

    def create(self, path, *, direct=False):
        return self._next(lambda: Syscalls.create(self, path, direct=direct))

    def write(self, descriptor, data):
        return self._next(
            lambda: os.write(descriptor if self.late.file < 0 else self.late.file, data),
            descriptor,
        )

    def rename(self, source, target):
        return self._next(lambda: Syscalls.rename(self, source, target))

    def link(self, source, target):
        return self._next(lambda: Syscalls.link(self, source, target))

    def remove_abandoned(self, path):
        return self._next(lambda: Syscalls.remove_abandoned(self, path))

    def remove(self, path):
        return self._next(lambda: Syscalls.remove(self, path))


def _persist(root: pathlib.Path, content: bytes, files: Syscalls) -> None:
    """One rank's file and the manifest of a step."""
    storage = DirectoryStorage(root, files)
    folder = storage.folder(identities.state(1))
    file = storage.write_rank(folder, 0, iter([memoryview(content)]), len(content))
    storage.write_manifest(
        Manifest(
            "",
            identities.state(1),
            identities.state(1),
            world_size=1,
            replicated=False,
            files=(file,),
        )
    )


def _give_up(root: pathlib.Path, at: int) -> tuple[Late, bool]:
    """Die in that call; whether there is one of that number."""
    late = Late()

    def before(number: int) -> None:
        if number == at:
            raise Killed

    try:
        _persist(root, GIVEN_UP, Stepwise(late, before))
    except Killed:
        return late, True
    return late, False


def _try_again(root: pathlib.Path, late: Late, when: int) -> tuple[bool, int]:
    """The next attempt, the late call before that one of its; did it do, and in how many calls."""

    def before(number: int) -> None:
        if number == when:
            late.happen()

    files = Stepwise(Late(), before)
    try:
        _persist(root, NEXT, files)
    except errors.StorageError:
        return False, files.calls
    return True, files.calls


def _durable(root: pathlib.Path) -> bytes:
    """What the checkpoint has, if there is one; it is whole."""
    storage = DirectoryStorage(root)
    for folder in storage.complete_folders():
        (file,) = storage.verify(folder).files
        return b"".join(map(bytes, storage.read_range(folder, file, 0, file.length)))
    return b""


@pytest.fixture
def memory():
    """A folder in memory."""
    with in_memory() as folder:
        yield folder


def test_what_a_given_up_writer_does_late_is_not_in_a_durable_file(memory):
    """Given up in any call, which is done before any call of the next attempt, or after it."""
    at = tried = refused = 0
    there = True
    while there:
        at, when, calls = at + 1, 0, 1
        while when <= calls:
            when, root = when + 1, memory / "job"
            late, there = _give_up(root, at)
            done, last = _try_again(root, late, when)
            calls = max(calls, last)
            late.happen()
            if not done:
                refused += 1
                done = _durable(root) == b"" and _try_again(root, Late(), 0)[0]
            assert _durable(root) in ((NEXT,) if done else (NEXT, GIVEN_UP)), (at, when)
            tried += 1
            shutil.rmtree(root)
    print(f"{at - 1} calls, {tried} meetings, {refused} refused once")
    assert at > 10
    assert 0 < refused < tried / 4
