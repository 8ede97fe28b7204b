# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A command with a memory limit of its own, which it sees as a container sees its limit."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from collections.abc import Iterator

from tests.support.waiting import eventually

_ROOT = pathlib.Path("/sys/fs/cgroup")
_ENTER = """
mount --bind "$0" "$1" && echo $$ > "$1/cgroup.procs" && shift && exec "$@"
"""
_UNIFIED = (_ROOT / "cgroup.controllers").exists()
_SEEN = _ROOT if _UNIFIED else _ROOT / "memory"
_GROUP = _SEEN / f"limited-{os.getpid()}"


@contextlib.contextmanager
def limited(mebibytes: int) -> Iterator[tuple[str, ...]]:
    """What to put before a command so that it runs within the limit; wants root.

    Args:
        mebibytes: of the limit.
    """
    if _UNIFIED:
        (_ROOT / "cgroup.subtree_control").write_text("+memory")
    _GROUP.mkdir()
    limit = "memory.max" if _UNIFIED else "memory.limit_in_bytes"
    (_GROUP / limit).write_text(str(mebibytes << 20))
    try:
        yield "unshare", "--mount", "sh", "-c", _ENTER, str(_GROUP), str(_SEEN)
    finally:
        eventually(_emptied, within=20, what="an empty control group")
        _GROUP.rmdir()


def members() -> tuple[int, ...]:
    """Processes that run within the limit now."""
    return tuple(map(int, (_GROUP / "cgroup.procs").read_text().split()))


def account() -> tuple[int, int]:
    """Bytes that the kernel counts against the limit: of no file, and of files it has read."""
    names = ("anon", "file") if _UNIFIED else ("total_rss", "total_cache")
    lines = (line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
    counts = {name: int(count) for name, count in lines}
    return counts[names[0]], counts[names[1]]


def _emptied() -> bool:
    for pid in members():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not members()
