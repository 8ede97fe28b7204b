# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The files that a data set is made of, as they were when it was opened."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from rover_kf import errors


@dataclasses.dataclass(frozen=True, slots=True)
class SourceFile:
    """One of them."""

    path: str
    name: str
    """Below the folder that was given; the same wherever that is mounted."""
    size: int
    """Bytes."""
    modified: int
    """Nanoseconds since 1970."""

    def open(self) -> BinaryIO:
        """Open it as it was.

        Raises:
            DatasetReadError: it is gone, cannot be opened, or was changed since.
        """
        try:
            stream = pathlib.Path(self.path).open("rb")  # noqa: SIM115 - the caller closes it
        except OSError as cause:
            raise errors.DatasetReadError(f"{self.path} cannot be opened: {cause}") from cause
        facts = os.fstat(stream.fileno())
        if (facts.st_size, facts.st_mtime_ns) != (self.size, self.modified):
            stream.close()
            raise errors.DatasetReadError(
                f"{self.path} was changed while the job trains: {self.size} bytes have become "
                f"{facts.st_size}, or were written again; leave the files of a data set as they "
                "are, or restart the job without its checkpoint to train on the new ones"
            )
        return stream


Sources = str | os.PathLike[str] | Sequence["str | os.PathLike[str]"]
"""A file, a folder, or several of them."""


def discover(sources: Sources, endings: Sequence[str] = ()) -> tuple[SourceFile, ...]:
    """All files, those of folders sorted by name, of all folders below them too.

    Args:
        sources: in the order in which they are read.
        endings: of names in folders; none: all. Names that begin with a dot or ``_`` are left out.

    Raises:
        InputError: there is no such file, or a folder has none.
    """
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    files = [file for source in given for file in _list_below(pathlib.Path(source), tuple(endings))]
    if not files:
        raise errors.InputError("a data set of no files: name at least one")
    return tuple(files)


def _list_below(source: pathlib.Path, endings: tuple[str, ...]) -> Iterable[SourceFile]:
    if source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.is_file())
        names = [(path, path.relative_to(source)) for path in paths]
        kept = [
            (path, name.as_posix())
            for path, name in names
            if not any(part.startswith((".", "_")) for part in name.parts)
            and (not endings or name.name.endswith(endings))
        ]
        if not kept:
            of = f" that end with {' or '.join(endings)}" if endings else ""
            raise errors.InputError(
                f"the folder {source} has no files{of}; is the volume with the data mounted there?"
            )
    elif source.is_file():
        kept = [(source, source.name)]
    else:
        raise errors.InputError(f"there is no {source}; is the volume with the data mounted there?")
    for path, name in kept:
        facts = path.stat()
        yield SourceFile(str(path), name, facts.st_size, facts.st_mtime_ns)
