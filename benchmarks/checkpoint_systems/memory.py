# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of a process and its children, and the machine's shared memory, each page once.

What processes map together is not taken from their proportional sizes: while it is mapped anew
between looks at two of them it would be counted twice, and while nobody maps it not at all.
"""

from __future__ import annotations

import ctypes
import mmap
import pathlib
import threading


def used(pid: int) -> float:
    """Of a process and all below it, and of all shared memory of the machine, in MiB."""
    return own(pid) + _figure(pathlib.Path("/proc/meminfo"), "Shmem")


def own(pid: int) -> float:
    """Of a process and all below it, without shared memory, in MiB."""
    rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup")
    try:
        found = _figure(rollup, "Pss_Anon") + _figure(rollup, "Pss_File")
    except OSError:  # the process has ended
        return 0.0
    return found + sum(own(child) for child in _children(pid))


def give_back(mebibytes: int) -> None:
    """Fill memory and free it, as the process that a restoring one succeeds did by its end.

    A virtual machine may not have the memory that its kernel calls free: whoever touches that
    first waits for the host, which would be measured instead of the systems. And who restores is a
    new process: what an earlier restore has left in this one's heap it would not find.
    """
    ctypes.CDLL(None).malloc_trim(0)
    size = mebibytes << 20
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        for offset in range(0, size, mmap.PAGESIZE):
            block[offset] = 1


class Watch:
    """The most that a tree of processes has while the context lasts.

    Args:
        pid: the tree's root.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.mebibytes = 0.0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.mebibytes = max(self.mebibytes, used(self._pid))
            if self._ended.wait(0.1):
                return


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text().split()]
        except OSError:  # noqa: PERF203 - the thread has ended
            continue
    return found


def _figure(path: pathlib.Path, name: str) -> float:
    """A line's kilobytes, in MiB; 0 where a process without memory has no such line."""
    lines = (line.split() for line in path.read_text().splitlines())
    return next((int(words[1]) / 1024 for words in lines if words[0] == f"{name}:"), 0.0)
