# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What stands in the folders of a storage, and what is wrong with it; no file is read whole."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from rover_kf import errors
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.manifest import Folder, Manifest
from rover_kf.checkpoint.storage import verification
from rover_kf.checkpoint.storage.storage_protocol import Storage


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


UNFINISHED = "no manifest: being written or removed, or left by a crash"


_MOST_TOLD = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """One folder that is named like a checkpoint."""

    name: str
    step: int
    generation: int
    files: int
    """Ranks' files that are there."""
    bytes: int
    """Of them together."""
    problem: str = ""
    """Empty: the manifest is good and its files are there in their sizes."""
    unread: bool = False
    """The problem is that it could not be looked at."""
    world_size: int | None = None
    """None, as all below: the manifest cannot be read."""
    replicated: bool | None = None
    pieces: bool | None = None
    saved_at: float | None = None
    """Unix seconds."""
    metrics: dict[str, float] | None = None
    """What the script measured."""

    @property
    def kind(self) -> str:
        """How the ranks held the state."""
        if self.world_size is None:
            return ""
        held = [
            *(["replicated"] if self.replicated else []),
            *(["sharded"] if self.pieces else []),
        ]
        return ", ".join(held) or "each rank its own"


def listing(storage: Storage, folders: Iterable[Folder]) -> Iterator[Listed]:
    """Look at folders, one after the other; one that cannot be looked at hides no other.

    Raises:
        StorageFailed: the storage as a whole cannot be read.
    """
    for folder in folders:
        found = Listed(folder.name, folder.step, folder.generation, 0, 0)
        try:
            yield _looked_at(storage, folder, found)
        except errors.StorageFailed as error:
            check_own(error)
            yield dataclasses.replace(found, problem=str(error), unread=True)


def _looked_at(storage: Storage, folder: Folder, found: Listed) -> Listed:
    sizes = storage.sizes(folder)
    ours = [size for name, size in sizes.items() if manifest.is_plain(name)]
    found = dataclasses.replace(found, files=len(ours), bytes=sum(ours))
    if manifest.NAME not in sizes:
        return dataclasses.replace(found, problem=UNFINISHED)
    try:
        content = storage.read_manifest(folder)
    except errors.TornSnapshot as error:
        return dataclasses.replace(found, problem=str(error))
    except errors.StorageFailed:
        if not is_gone(storage, folder):
            raise
        return dataclasses.replace(found, problem=UNFINISHED)
    return dataclasses.replace(
        found,
        problem=_problem(folder, content, sizes),
        world_size=content.world_size,
        replicated=content.replicated,
        pieces=content.pieces,
        saved_at=content.saved_at,
        metrics=content.metrics,
    )


def check_own(error: errors.StorageFailed) -> None:
    """Go on only if a file system refuses one folder or file, by its owner or for a bad sector.

    Raises:
        StorageFailed: an object store does not answer, and would not for the others.
    """
    if not isinstance(error.__cause__, OSError):
        raise error


def few(words: Sequence[str]) -> str:
    """Words for a message, the last of them where they are many."""
    told = ", ".join(words[-_MOST_TOLD:]) or "none"
    return told if len(words) <= _MOST_TOLD else f"{len(words)}, the newest {told}"


def is_gone(storage: Storage, folder: Folder) -> bool:
    """Whether a checkpoint that could not be read has been removed, as by a running job.

    Raises:
        StorageFailed: the storage cannot be read.
    """
    return manifest.NAME not in storage.sizes(folder)


@contextlib.contextmanager
def removal_told(storage: Storage, folder: Folder) -> Iterator[None]:
    """Say of a checkpoint that goes while it is read that it went, not which file lacks.

    Raises:
        StorageFailed: it was removed.
    """
    try:
        yield
    except (errors.StorageFailed, errors.TornSnapshot) as cause:
        if not is_gone(storage, folder):
            raise
        raise errors.StorageFailed(
            f"{folder.location} was removed while it was read, as a running job's retention does: "
            "take the newest again, or let more of them stay (checkpoint.keep, keep-every)"
        ) from cause


def _problem(folder: Folder, content: Manifest, sizes: Mapping[str, int]) -> str:
    try:
        verification.check_sizes(folder, content, sizes)
    except errors.TornSnapshot as error:
        return str(error)
    return ""
