# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A command with a memory limit of its own, which it sees as a container sees its limit."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

_ROOT = pathlib.Path("/sys/fs/cgroup")
_ENTER = """
mount --bind "$0" "$1" && echo $$ > "$1/cgroup.procs" && shift && exec "$@"
"""


@contextlib.contextmanager
def limited(mebibytes: int) -> Iterator[tuple[str, ...]]:
    """What to put before a command so that it runs within the limit; wants root.

    Args:
        mebibytes: of the limit.
    """
    unified = (_ROOT / "cgroup.controllers").exists()
    seen = _ROOT if unified else _ROOT / "memory"
    if unified:
        (_ROOT / "cgroup.subtree_control").write_text("+memory")
    group = seen / f"limited-{os.getpid()}"
    group.mkdir()
    limit = "memory.max" if unified else "memory.limit_in_bytes"
    (group / limit).write_text(str(mebibytes << 20))
    try:
        yield "unshare", "--mount", "sh", "-c", _ENTER, str(group), str(seen)
    finally:
        group.rmdir()
