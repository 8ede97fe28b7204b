# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A folder of files as a snapshot lists it: what is in it, and what of it could not be put back.

Standard library only, without torch: any framework's files.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import stat
from collections.abc import Iterator
from typing import Any

from rover_kf import errors


@dataclasses.dataclass(frozen=True, slots=True)
class FileEntry:
    """A regular file."""

    path: str
    """Relative to the folder, with slashes."""
    mode: int
    """Permission bits."""
    size: int = 0
    mtime_ns: int = 0
    """Nanoseconds of its last change, to tell whether it was written meanwhile."""


@dataclasses.dataclass(frozen=True, slots=True)
class FolderListing:
    """What is in a folder; paths are relative to it."""

    files: tuple[FileEntry, ...]
    folders: tuple[str, ...]
    """Parents in front."""
    links: tuple[tuple[str, str], ...]
    """Path and where it points, relative to where it stands."""
    modes: tuple[int, ...] = ()
    """Permission bits of the folders, in their order; none in what older versions have saved."""

    def to_plain(self) -> dict[str, Any]:
        """As it stands in a snapshot's state."""
        files = [(file.path, file.mode) for file in self.files]
        return {
            "files": files,
            "folders": list(self.folders),
            "links": list(self.links),
            "modes": list(self.modes),
        }


def require_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Return the folder that a script names.

    Raises:
        InputError: it names none, which would be the working directory.
    """
    if not os.fspath(path):
        raise errors.InputError(
            "no path of a folder was given; give the one that the framework writes, or '.' for the "
            "working directory"
        )
    return pathlib.Path(path)


def resolve_target(path: pathlib.Path) -> pathlib.Path:
    """Return where a folder is created that a script names; links are followed.

    Raises:
        InputError: something is there already, or it is the root of a volume, which cannot be put
            in its place whole.
    """
    root = _real_path(path)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise errors.InputError(
            f"{root} is there already; if a process before this one in the same pod was given it, "
            "remove it before restore (shutil.rmtree(folder, ignore_errors=True)), else name a "
            "folder that can be made"
        )
    if root.is_mount():
        raise errors.InputError(
            f"a volume is mounted at {root}, which cannot be made whole or not at all; name a "
            f"folder in it, such as {root / 'begin'}"
        )
    return root


def scan(root: pathlib.Path) -> FolderListing:
    """List a folder.

    Raises:
        InputError: there is no such folder, or no file in it.
        UnsupportedState: something in it could not be put back elsewhere; the message names it.
    """
    if not root.is_dir():
        raise errors.InputError(f"{root} is no folder; save what the framework has written")
    found = [(path, path.lstat()) for path in _walk(root)]
    files, folders, links, modes = [], [], [], []
    for path, status in found:
        name = _name(path, root)
        if stat.S_ISREG(status.st_mode):
            files.append(
                FileEntry(name, status.st_mode & 0o777, status.st_size, status.st_mtime_ns)
            )
        elif stat.S_ISDIR(status.st_mode):
            folders.append(name)
            modes.append(status.st_mode & 0o777)
        elif stat.S_ISLNK(status.st_mode):
            target = str(path.readlink())
            check_link(name, target)
            if not _real_path(path).is_relative_to(_real_path(root)):
                raise errors.UnsupportedState(_escape_message(name, target))
            links.append((name, target))
        else:
            raise errors.UnsupportedState(
                f"{path} is a socket, a pipe or a device, which has no bytes to keep; remove it or "
                "save a folder without it"
            )
    if not files:
        raise errors.InputError(f"{root} has no file in it; save after the framework has written")
    return FolderListing(tuple(files), tuple(folders), tuple(links), tuple(modes))


def read_into(root: pathlib.Path, file: FileEntry, slot: int) -> None:
    """Let the kernel copy a file's bytes to the position of a slot's descriptor.

    Raises:
        CheckpointError: it changed since, or meanwhile.
        OSError: it cannot be read.
    """
    source = os.open(root / file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        left = file.size
        while left:
            moved = os.sendfile(slot, source, None, left)
            if not moved:
                break
            left -= moved
        status = os.fstat(source)
    finally:
        os.close(source)
    if left or (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
        raise errors.CheckpointError(
            f"{root / file.path} changed while it was being saved; save after the framework has "
            "finished writing"
        )


def from_plain(tree: Any) -> FolderListing:
    """Read what a snapshot lists; nothing in it leads out of the folder.

    Raises:
        CheckpointError: another kind of script has saved it.
        CorruptSnapshot: a path leads out of the folder.
    """
    inside = tree.get("folder") if isinstance(tree, dict) else None
    if not isinstance(inside, dict):
        kinds = sorted(map(str, tree)) if isinstance(tree, dict) else type(tree).__name__
        raise errors.IncompatibleState(
            f"the job's state has {kinds} and no folder; it was saved by another script, whose own "
            "restore brings it back"
        )
    found = FolderListing(
        tuple(FileEntry(str(path), int(mode)) for path, mode in inside["files"]),
        tuple(map(str, inside["folders"])),
        tuple((str(path), str(target)) for path, target in inside["links"]),
        tuple(map(int, inside.get("modes", ()))),
    )
    links = {path for path, _ in found.links}
    names = [*(file.path for file in found.files), *found.folders]
    for name in (*names, *links):
        parents = {str(parent) for parent in pathlib.PurePosixPath(name).parents}
        if not _is_inside(name) or parents & links:
            raise errors.CorruptSnapshot(f"{name!r} in a snapshot of a folder leads out of it")
    for name, target in found.links:
        check_link(name, target)
    return found


def check_link(name: str, target: str) -> None:
    """Make sure that a link stays inside its folder, wherever that is put.

    Raises:
        UnsupportedState: it does not.
    """
    reached = os.path.normpath(str(pathlib.PurePosixPath(name).parent / target))
    if target.startswith("/") or reached == ".." or reached.startswith("../"):
        raise errors.UnsupportedState(_escape_message(name, target))


def _walk(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """All that is in it, parents in front; links are not followed."""
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        path = pathlib.Path(entry.path)
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(path)


def _real_path(path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(os.path.realpath(path))  # Path.resolve has no answer to a loop of links


def _name(path: pathlib.Path, root: pathlib.Path) -> str:
    name = path.relative_to(root).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError as cause:
        raise errors.UnsupportedState(
            f"the name {name!r} in {root} is not UTF-8; rename it, since a snapshot names files in "
            "UTF-8"
        ) from cause
    return name


def _is_inside(name: str) -> bool:
    parts = name.split("/")
    return not ({"", ".", ".."} & set(parts)) and "\0" not in name


def _escape_message(name: str, target: str) -> str:
    return (
        f"{name} is a link to {target}, out of the folder, where it would be missing after a "
        "restore; put the file itself into the folder, or remove the link"
    )
