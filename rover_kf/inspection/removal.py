# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints a person may remove, and what must be forced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rover_kf import errors
from rover_kf.checkpoint.manifest import Folder
from rover_kf.inspection.listing import UNFINISHED, Listed, few


def chosen(folders: Sequence[Folder], words: Sequence[str]) -> tuple[Folder, ...]:
    """The folders that words name.

    Args:
        folders: of the job.
        words: a step, of whatever generation, a folder's name, or its location.

    Raises:
        InputError: a word names none of them.
    """
    found: dict[Folder, None] = {}
    for word in words:
        step = int(word) if word.isdecimal() else None
        same = [f for f in folders if word in (f.name, f.location) or f.step == step]
        if not same:
            there = few([folder.name for folder in folders])
            raise errors.InputError(f"there is no checkpoint {word!r}; there are {there}")
        found.update(dict.fromkeys(same))
    return tuple(found)


def objection(
    listed: Sequence[Listed], doomed: Collection[str], is_whole: Callable[[str], bool]
) -> str:
    """Why these should not go without force; empty: they may.

    Args:
        listed: everything of the job, oldest first.
        doomed: names of folders.
        is_whole: whether a folder's files are to the last byte what was written; asked of those
            that look good, the newest first, until one is.
    """
    looking_good = [item.name for item in listed if not item.problem]
    newest = next(filter(is_whole, reversed(looking_good)), None)
    if newest in doomed:
        return f"{newest} is the newest good checkpoint: the job would resume from it"
    if newest is None:
        return "none of the job's checkpoints is good: a damaged one may be all that is left"
    for item in listed:
        if item.name in doomed and item.problem == UNFINISHED:
            return f"{item.name} has no manifest: a job that runs may be writing it"
        if item.name in doomed and item.unread:
            return f"{item.name} may be the newest good checkpoint; {item.problem}"
    return ""
