# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of text files as samples."""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Sequence

from rover_kf import errors
from rover_kf.datasets import files, line_index
from rover_kf.datasets.block_reader import BlockReader

_BLOCK_BYTES = 256 << 10
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".lz4")


class TextLines(BlockReader[list[bytes]]):
    """Each line of each file, without what ends it; also empty ones.

    ::

        lines = TextLines("/data/corpus", index="/data/corpus.lines")
        loader = ElasticDataLoader(lines, batch_size=256, num_workers=2)

    Args:
        sources: files of UTF-8 text, or folders of them; not compressed.
        index: a file for where blocks of lines begin, made when it is not there; without it every
            process reads all files once when it begins.
        endings: of the names of files in folders; none: all files.
        block_bytes: that are read at once.
        cached: blocks that a process keeps, in memory about three times their bytes.

    Raises:
        InputError: there are no such files, they are empty or compressed, or a number is below 1.
        DatasetReadError: a file is being written.
    """

    def __init__(
        self,
        sources: files.Sources,
        *,
        index: str | os.PathLike[str] | None = None,
        endings: Sequence[str] = (),
        block_bytes: int = _BLOCK_BYTES,
        cached: int = 128,
    ) -> None:
        if block_bytes < 1:
            raise errors.InputError(f"block_bytes is {block_bytes}; 1 or more is needed")
        self._files = files.discover(sources, endings)
        packed = [file.path for file in self._files if file.path.endswith(_PACKED)]
        if packed:
            raise errors.InputError(
                f"{packed[0]} is compressed: a line within it cannot be found without reading all "
                "before it; unpack it, or store the text in Parquet files"
            )
        self._index = (
            line_index.build(self._files, block_bytes)
            if index is None
            else line_index.load(pathlib.Path(index), self._files, block_bytes)
        )
        if not self._index.lines:
            raise errors.InputError(f"{self._files[0].path} and all others are empty: no lines")
        super().__init__(self._index.lines, cached)

    def __getitem__(self, number: int) -> str:
        return self._line(number)

    def __getitems__(self, numbers: Sequence[int]) -> list[str]:
        """Several lines, as DataLoader asks for them.

        Raises:
            IndexError: there is no such line.
            DatasetReadError: a file was changed, or a line is no UTF-8.
        """
        return [self._line(number) for number in numbers]

    @property
    def fingerprint(self) -> str:
        """Of the files' names and contents."""
        whole = hashlib.blake2b(digest_size=16)
        for file, digest in zip(self._files, self._index.digests, strict=True):
            whole.update(f"{file.name} {digest}\n".encode())
        return whole.hexdigest()

    def _line(self, number: int) -> str:
        block, within = self._locate(number)
        line = self._cached_block(block)[within]
        try:
            return line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as cause:
            file = self._files[self._index.files[block]]
            raise errors.DatasetReadError(
                f"{file.path}: line {within} after byte {self._index.offsets[block]} is no UTF-8: "
                f"{cause}; write the file as UTF-8"
            ) from cause

    def _read(self, block: int) -> list[bytes]:
        """The lines of a block."""
        file = self._files[self._index.files[block]]
        begin, size = self._index.offsets[block], self._index.sizes[block]
        with file.open() as stream:
            stream.seek(begin)
            lines = stream.read(size).removesuffix(b"\n").split(b"\n")
        if len(lines) != self._index.lines[block]:
            raise errors.DatasetReadError(
                f"{file.path}: bytes {begin} to {begin + size} have {len(lines)} lines, the index "
                f"knows of {self._index.lines[block]}: the file was changed; remove the index"
            )
        return lines
