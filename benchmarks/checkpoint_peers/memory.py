# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of a process and its children, shared pages counted once."""

from __future__ import annotations

import mmap
import pathlib
import threading


def of_tree(pid: int) -> float:
    """Proportional set size of a process and all below it, in MiB."""
    found = _pss(pid)
    for child in _children(pid):
        found += of_tree(child)
    return found


def give_back(mebibytes: int) -> None:
    """Fill memory and free it, as the process that a restoring one succeeds did by its end.

    A virtual machine may not have the memory that its kernel calls free: whoever touches that
    first waits for the host, which would be measured instead of the systems.
    """
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
            self.mebibytes = max(self.mebibytes, of_tree(self._pid))
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


def _pss(pid: int) -> float:
    try:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # the process has ended
        return 0.0
    line = next((line for line in text.splitlines() if line.startswith("Pss:")), "Pss: 0 kB")
    return int(line.split()[1]) / 1024
