# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Making a local rank's slots in memory; the sidecar does it, so that it pays for the pages.

Pages of a memory-backed volume are charged to the control group that first asks for them: the
sidecar reserves, the trainer's memory limit is not spent. Reserving with posix_fallocate takes the
pages at once and fails cleanly on a full volume, where a touch would be SIGBUS. The kernel clears
them when they are first mapped, which the trainer does in the background
(rover_kf.trainer.staging.slots). A slot grows in place: its bytes stay, so a sealed snapshot
outlives the growth, and a mapping of the smaller size stays valid. It never shrinks below what
anybody mapped.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import pathlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from rover_kf import errors
from rover_kf.api import names
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import CONTROL_BYTES, SLOTS
from rover_kf.system import shared_volume

_CAPACITY_STEP = 1 << 18
"""Capacity grows in such steps, so that a growing header does not ask again."""


def allocate(
    root: pathlib.Path,
    arena_name: int | str,
    slot_bytes: int,
    *,
    max_bytes: int,
    slots: Sequence[int] = SLOTS,
) -> Arena:
    """Give a local rank two slots of at least ``slot_bytes``, or a replica one.

    Args:
        root: the arena's folder, ``$ROVER_HOME/arena``.
        arena_name: the local rank, or the replica's name.
        slot_bytes: what one snapshot needs.
        max_bytes: that all slots below ``root`` may take together.
        slots: which slots to make.

    Raises:
        ArenaTooSmall: it does not fit; what was sealed before is untouched.
    """
    arena = Arena(root / str(arena_name))
    have = arena.slot_bytes(slots)
    wanted = _whole_pages(slot_bytes)
    if have >= wanted:
        return arena
    others = _total_bytes(root, without={arena.directory.name})
    available = max(max_bytes - others, 0) // len(slots)
    if wanted > available:
        raise errors.ArenaTooSmall(wanted, available, _arena_advice(others + len(slots) * wanted))
    size = min(
        -(-wanted // _CAPACITY_STEP) * _CAPACITY_STEP, available // mmap.PAGESIZE * mmap.PAGESIZE
    )
    _make_folder(root)
    _make_folder(arena.directory)
    _make_file(arena.directory / "control", CONTROL_BYTES)
    _grow_all(root, [arena.slot_path(slot) for slot in slots], size)
    return arena


def fits(
    root: pathlib.Path,
    arena_name: int | str,
    slot_bytes: int,
    *,
    max_bytes: int,
    without: AbstractSet[str],
) -> bool:
    """Whether ``allocate`` would find room for a local rank's slots if other places were given up.

    Args:
        root: the arena's folder.
        arena_name: the local rank.
        slot_bytes: what one snapshot needs.
        max_bytes: that all slots below ``root`` may take together.
        without: the other places.
    """
    others = _total_bytes(root, without={*without, str(arena_name)})
    return others + len(SLOTS) * _whole_pages(slot_bytes) <= max_bytes


def _whole_pages(size: int) -> int:
    return max(-(-size // mmap.PAGESIZE), 1) * mmap.PAGESIZE


def _total_bytes(root: pathlib.Path, *, without: AbstractSet[str]) -> int:
    """What the slots of all places take but of those."""
    total = 0
    for folder in root.glob("*"):  # none where nothing was made yet
        if folder.name in without:
            continue
        # One that another thread gives back meanwhile is not counted, nor is what is no folder.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for path in folder.iterdir():
                total += path.lstat().st_size if path.name.startswith("slot-") else 0
    return total


def _arena_advice(total: int) -> str:
    mebibytes = -(-total // (1 << 20))
    return (
        f"set the annotation {names.PREFIX}checkpoint.arena to {mebibytes}Mi or more "
        "(all slots of the pod together) and give the sidecar as much memory"
    )


def _make_folder(path: pathlib.Path) -> None:
    path.mkdir(exist_ok=True, parents=True)
    # The user's image runs under an unknown UID, and mkdir's mode is cut by the umask.
    if path.stat().st_mode & 0o777 != 0o777:  # noqa: PLR2004 - the mode itself
        path.chmod(0o777)


def _make_file(path: pathlib.Path, size: int) -> None:
    descriptor = shared_volume.open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(descriptor).st_mode & 0o777 != 0o666:  # noqa: PLR2004 - the mode itself
            os.fchmod(descriptor, 0o666)
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def _grow_all(root: pathlib.Path, paths: Sequence[pathlib.Path], size: int) -> None:
    """Grow slots to a size; where the volume refuses, all are as they were."""
    for path in paths:
        _make_file(path, 0)
    before = [path.lstat().st_size for path in paths]
    try:
        for path in paths:
            _grow(path, size)
    except OSError as cause:
        for path, had in zip(paths, before, strict=True):
            _truncate(path, had)
        if cause.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise
        free = os.statvfs(root)
        available = free.f_bavail * free.f_frsize + sum(before)
        raise errors.ArenaTooSmall(
            size, available // len(paths), _volume_advice(root, cause, len(paths) * size)
        ) from cause


def _volume_advice(root: pathlib.Path, cause: OSError, total: int) -> str:
    # Not in the system's words, which a failure of a data loader is known by.
    return (
        f"policy allows it, but the memory volume of {root} does not "
        f"({errno.errorcode[cause.errno or 0]}): make it larger, so that all slots have "
        f"{-(-total // (1 << 20))}Mi beside what else is in it; of an embedded job it is /dev/shm, "
        "which docker run --shm-size sets"
    )


def _grow(path: pathlib.Path, size: int) -> None:
    descriptor = shared_volume.open_file(path, os.O_RDWR)
    try:
        before = os.fstat(descriptor).st_size
        if before < size:
            os.posix_fallocate(descriptor, before, size - before)
    finally:
        os.close(descriptor)


def _truncate(path: pathlib.Path, size: int) -> None:
    descriptor = shared_volume.open_file(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)
