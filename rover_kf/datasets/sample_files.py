# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which files a data set of whole files has: millions of them, so names and sizes lie in arrays."""

from __future__ import annotations

import array
import bisect
import dataclasses
import hashlib
import os
from collections.abc import Sequence

from rover_kf import errors
from rover_kf.datasets import filesystems
from rover_kf.datasets.files import Sources
from rover_kf.datasets.filesystems import FileInfo, Filesystem


@dataclasses.dataclass(frozen=True, slots=True)
class SampleFiles:
    """In the order of their numbers: source by source, each sorted by name."""

    filesystems: tuple[Filesystem, ...]
    begins: array.array[int]
    """By place: the number of its first file."""
    names: bytes
    """All of them, one after the other."""
    ends: array.array[int]
    """By file: where its name ends."""
    sizes: array.array[int]
    modified: array.array[int]

    def __len__(self) -> int:
        return len(self.ends)

    def get(self, number: int) -> tuple[Filesystem, FileInfo]:
        """A file and where it lies.

        Raises:
            IndexError: there is no such file.
        """
        if not 0 <= number < len(self):
            message = f"sample {number} of {len(self)}"
            raise IndexError(message)
        place = self.filesystems[bisect.bisect_right(self.begins, number) - 1]
        return place, FileInfo(self._name(number), self.sizes[number], self.modified[number])

    def _name(self, number: int) -> str:
        begin = self.ends[number - 1] if number else 0
        return os.fsdecode(self.names[begin : self.ends[number]])

    def folders(self) -> tuple[str, ...]:
        """Those right below a source that have files somewhere below them, sorted."""
        parts = (self._name(number).partition("/") for number in range(len(self)))
        return tuple(sorted({head for head, slash, _ in parts if slash}))

    def fingerprint(self) -> str:
        """Of names and sizes, not of contents."""
        whole = hashlib.blake2b(digest_size=16)
        for values in (self.names, self.ends, self.sizes):
            whole.update(values)
        return whole.hexdigest()


def discover(sources: Sources, endings: Sequence[str]) -> SampleFiles:
    """All files of these sources.

    Args:
        sources: folders, files and addresses.
        endings: of the names of files in folders; none: all.

    Raises:
        InputError: there is no such source, or one has no files.
    """
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    if not given:
        raise errors.InputError("a data set of no files: name at least one")
    begins, ends, sizes, modified = (array.array("Q") for _ in range(4))
    names = bytearray()
    places = []
    for source in given:
        place, listed = filesystems.list_files(os.fspath(source), tuple(endings))
        places.append(place)
        begins.append(len(ends))
        for file in listed:
            names += os.fsencode(file.name)
            ends.append(len(names))
            sizes.append(file.size)
            modified.append(file.modified)
        if begins[-1] == len(ends):
            of = f" that end with {' or '.join(endings)}" if endings else ""
            raise errors.InputError(
                f"{os.fspath(source)} has no files{of}; is the volume with the data mounted there?"
            )
    return SampleFiles(tuple(places), begins, bytes(names), ends, sizes, modified)
