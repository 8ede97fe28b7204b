# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where blocks of whole lines begin in text files: a few numbers a block, not one a line.

Made by one pass over the files, in the memory of one block. Saved, it is read again as long as the
files' sizes and times are the same, so that only the first process of a data set pays the pass.
"""

from __future__ import annotations

import array
import dataclasses
import hashlib
import itertools
import json
import logging
import os
import pathlib
import sys
from collections.abc import Iterator

from rover_kf import errors
from rover_kf.datasets.files import SourceFile

_log = logging.getLogger("rover_kf")
_VERSION = 1
_SUM_BYTES = 16


@dataclasses.dataclass(frozen=True, slots=True)
class LineIndex:
    """Of a data set's files. A block is a stretch of one file."""

    files: array.array[int]
    """By block: the file that it is in."""
    offsets: array.array[int]
    """By block: the byte of that file that it begins with."""
    sizes: array.array[int]
    """By block: its bytes."""
    lines: array.array[int]
    """By block: its lines."""
    digests: tuple[str, ...]
    """Of the files' contents."""


def build(files: tuple[SourceFile, ...], block_bytes: int) -> LineIndex:
    """Read all files once.

    Args:
        files: of lines that end with a line feed, but for a file's last one.
        block_bytes: that a block has, at least, until its last line ends.

    Raises:
        DatasetReadError: a file was changed meanwhile.
    """
    numbers, begins, sizes, lines = (array.array("Q") for _ in range(4))
    digests = []
    for number, file in enumerate(files):
        whole = hashlib.blake2b(digest_size=16)
        begin = 0
        for size, count in _blocks(file, block_bytes, whole):
            numbers.append(number)
            begins.append(begin)
            sizes.append(size)
            lines.append(count)
            begin += size
        if begin != file.size:
            raise errors.DatasetReadError(
                f"{file.path} had {file.size} bytes and now has {begin}: it is being written; "
                "start the job when its data are complete"
            )
        digests.append(whole.hexdigest())
    return LineIndex(numbers, begins, sizes, lines, tuple(digests))


def _blocks(
    file: SourceFile, block_bytes: int, whole: hashlib.blake2b
) -> Iterator[tuple[int, int]]:
    """Bytes and lines of each block of a file."""
    size = count = 0
    with file.open() as stream:
        while piece := stream.read(block_bytes):
            whole.update(piece)
            end = piece.rfind(b"\n") + 1
            size += end or len(piece)
            count += piece.count(b"\n")
            if end:
                yield size, count
                size, count = len(piece) - end, 0
    if size:
        yield size, 1  # a last line without its line feed


def load(path: pathlib.Path, files: tuple[SourceFile, ...], block_bytes: int) -> LineIndex:
    """Take the saved index of these files, or make it and save it.

    Args:
        path: of the saved index; several processes may do this at once.
        files: see ``made``.
        block_bytes: see ``made``.

    Raises:
        DatasetReadError: a file was changed meanwhile.
        InputError: the index cannot be written there.
    """
    about: dict[str, object] = {
        "version": _VERSION,
        "order": sys.byteorder,
        "block_bytes": block_bytes,
        "files": [[file.name, file.size, file.modified] for file in files],
    }
    saved = _load_saved(path, about)
    if saved is not None:
        return saved
    index = build(files, block_bytes)
    _save(path, about, index)
    return index


def _save(path: pathlib.Path, about: dict[str, object], index: LineIndex) -> None:
    head = json.dumps({**about, "digests": index.digests}).encode()
    arrays = (index.files, index.offsets, index.sizes, index.lines)
    whole = b"\n".join((head, b"".join(each.tobytes() for each in arrays)))
    aside = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        aside.write_bytes(_checksum(whole) + whole)
        aside.replace(path)
    except OSError as cause:
        raise errors.InputError(
            f"the index of lines cannot be written to {path}: {cause}; name a file in a folder "
            "that can be written, or none"
        ) from cause


def _load_saved(path: pathlib.Path, about: dict[str, object]) -> LineIndex | None:
    """What was saved, if it is whole and of these files."""
    if not path.exists():
        return None
    whole = path.read_bytes()
    sound = whole[:_SUM_BYTES] == _checksum(whole[_SUM_BYTES:])
    line, _, body = whole[_SUM_BYTES:].partition(b"\n")
    head = json.loads(line) if sound else {}
    if any(head.get(name) != value for name, value in about.items()):
        _log.warning("the index of lines in %s is of other files, or damaged: made again", path)
        return None
    each = len(body) // 4
    arrays = []
    for begin, end in itertools.pairwise(range(0, len(body) + 1, each or 1)):
        arrays.append(array.array("Q"))
        arrays[-1].frombytes(body[begin:end])
    return LineIndex(arrays[0], arrays[1], arrays[2], arrays[3], tuple(head["digests"]))


def _checksum(whole: bytes) -> bytes:
    return hashlib.blake2b(whole, digest_size=_SUM_BYTES).digest()
