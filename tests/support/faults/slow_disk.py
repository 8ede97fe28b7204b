# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A disk that takes so many bytes a second, by the kernel's own limit; wants root."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

_ROOT = pathlib.Path("/sys/fs/cgroup")
_UNIFIED = (_ROOT / "cgroup.controllers").exists()
_LIMIT = "blkio.throttle.write_bps_device"


@contextlib.contextmanager
def slowed(pid: int, folder: pathlib.Path, bytes_per_second: int) -> Iterator[None]:
    """Limit what the process writes to a disk; its threads and its later children share the limit.

    Args:
        pid: of the process.
        folder: on a disk that is the test's own: with control groups of version 1, where pages are
            written back by the kernel on nobody's account, the limit is everybody's.
        bytes_per_second: that the disk takes.
    """
    number = folder.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    if _UNIFIED:
        with _group_of_its_own(pid) as group:
            (group / "io.max").write_text(f"{device} wbps={bytes_per_second}")
            yield
        return
    groups = {_ROOT / "blkio", _group_of(pid, "blkio")}
    for group in groups:
        (group / _LIMIT).write_text(f"{device} {bytes_per_second}")
    try:
        yield
    finally:
        for group in groups:
            (group / _LIMIT).write_text(f"{device} 0")


@contextlib.contextmanager
def _group_of_its_own(pid: int) -> Iterator[pathlib.Path]:
    (_ROOT / "cgroup.subtree_control").write_text("+io")
    before, group = _group_of(pid, ""), _ROOT / f"slowed-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        for member in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (before / "cgroup.procs").write_text(member)
        group.rmdir()


def _group_of(pid: int, controller: str) -> pathlib.Path:
    lines = pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    parts = (line.split(":", 2) for line in lines)
    path = next(path for _, names, path in parts if controller in names.split(","))
    return _ROOT / controller / path.lstrip("/")
