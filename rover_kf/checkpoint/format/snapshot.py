# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The bytes of one rank's state: a safetensors file, in a slot as on storage.

Trainer: plan once, write the header at each save. Everybody: read and check.
Standard library only, since it enters the user's image.

Layout: 8 bytes little-endian length of the header; JSON, padded with spaces (the one padding that
the format allows) until the tensors start at a multiple of 128, where flat copies are fastest;
tensors without holes: first those that leave the next one aligned as well, then the odd ones (a
counter of four bytes), those of the widest elements first, so that each is aligned by itself.
The header gets room to grow, since a counter that gains a digit must not move every tensor.
Types that safetensors lacks are stored as U8 and named in the metadata.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rover_kf import errors

ALIGNMENT = 128
"""Tensor data starts at a multiple of it."""

STATE_KEY = "rover.state"
"""Metadata: the state as JSON of rover_kf.checkpoint.format.plain_data."""

TYPES_KEY = "rover.types"
"""Metadata: JSON of {tensor: [type, shape]} for tensors stored as bytes."""

LENGTH_BYTES = 8
"""Of the header's length, which the file begins with."""
_MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library, and of what is read here."""
_MAX_DIMENSIONS = 64
"""That torch can have, and what bounds the time that a shape's product takes."""
_PARSE_ERRORS = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What reading a text that is not ours ends in: a header, or what stands in its metadata."""

_NONE: Mapping[str, str] = {}

WIDTHS: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""Bytes an element of each type of the format that we use."""


class Entry(NamedTuple):
    """One tensor, before it has a place; a restore makes thousands, and these are made sooner."""

    name: str
    dtype: str
    """Name in the format (a key of WIDTHS), or any other name: then stored as bytes."""
    shape: tuple[int, ...]
    width: int
    """Bytes an element."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.width


class PlacedTensor(NamedTuple):
    """One tensor with its place in the file."""

    entry: Entry
    begin: int
    """From the start of the file."""
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class SnapshotLayout:
    """Where everything of a snapshot stands."""

    tensors: tuple[PlacedTensor, ...]
    """In file order."""
    data_begin: int
    """First byte of the tensors: 8 + the header with its padding."""
    length: int
    """Of the whole file."""
    listing: str
    """The header's JSON of the tensors, without the braces; made once, written at each save."""
    types: str
    """What stands under TYPES_KEY; empty: nothing does."""


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What a file says it holds."""

    tensors: Mapping[str, PlacedTensor]
    metadata: Mapping[str, str]
    length: int


def plan(entries: Iterable[Entry], metadata: Mapping[str, str]) -> SnapshotLayout:
    """Give each tensor its place, with room in the header for metadata that grows a little.

    Args:
        entries: tensors with distinct names.
        metadata: as it will be written the first time.

    Raises:
        UnsupportedState: the header would be too long to be read again.
    """
    ordered = _sort_entries(entries)
    begins = list(itertools.accumulate((entry.nbytes for entry in ordered), initial=0))
    # Offsets in the header are relative to the data, so the text does not depend on its own size.
    relative = [PlacedTensor(e, b, b + e.nbytes) for e, b in zip(ordered, begins, strict=False)]
    listing, types = _listing(relative)
    text = _header_text(listing, types, metadata)
    data_begin = _data_begin(len(text))
    placed = tuple(
        PlacedTensor(p.entry, p.begin + data_begin, p.end + data_begin) for p in relative
    )
    return SnapshotLayout(placed, data_begin, data_begin + begins[-1], listing, types)


def _sort_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Tensors as a file has them."""
    return sorted(entries, key=lambda entry: (entry.nbytes % ALIGNMENT != 0, -entry.width))


def header(
    layout: SnapshotLayout, metadata: Mapping[str, str], written: Mapping[str, str] = _NONE
) -> bytes | None:
    """The file's bytes before the tensors; None if the layout has too little room: plan anew.

    Args:
        layout: of the tensors.
        metadata: to write.
        written: texts of the metadata that are known as JSON.
    """
    text = _header_text(layout.listing, layout.types, metadata, written)
    room = layout.data_begin - LENGTH_BYTES
    if len(text) > room:
        return None
    return room.to_bytes(LENGTH_BYTES, "little") + text.ljust(room)


def header_size(data: bytes | memoryview, file_bytes: int) -> int:
    """How many bytes the header takes, its length's own eight included.

    Args:
        data: at least the file's first LENGTH_BYTES bytes.
        file_bytes: of the whole file.

    Raises:
        CorruptSnapshot: a file of that size cannot hold it.
    """
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if file_bytes < LENGTH_BYTES or length > min(_MAX_HEADER_BYTES, file_bytes - LENGTH_BYTES):
        message = f"a snapshot of {file_bytes} bytes cannot hold a header of {length} bytes"
        raise errors.CorruptSnapshot(message)
    return LENGTH_BYTES + length


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Take a snapshot's text apart, which may be another's or damaged.

    Args:
        what: the error names.

    Raises:
        CorruptSnapshot: it cannot be read.
    """
    try:
        yield
    except _PARSE_ERRORS as cause:
        raise errors.CorruptSnapshot(f"a snapshot's {what} cannot be read: {cause!r}") from cause


def read(data: bytes | memoryview, file_bytes: int | None = None) -> Snapshot:
    """Read a file's header and check that it describes exactly so many bytes.

    Args:
        data: the file, without a slot's spare capacity, or at least its header.
        file_bytes: of the whole file, if ``data`` is not all of it.

    Raises:
        CorruptSnapshot: the bytes are not a whole snapshot's.
    """
    whole = len(data) if file_bytes is None else file_bytes
    data_begin = header_size(data, whole)
    with reading("header"):
        parsed = json.loads(str(memoryview(data)[LENGTH_BYTES:data_begin], "utf-8"))
        metadata = {str(key): str(item) for key, item in parsed.pop("__metadata__", {}).items()}
        types = json.loads(metadata.get(TYPES_KEY, "{}"))
        placed = _parse_tensors(parsed, types, data_begin)
    _check_offsets(placed, data_begin, whole)
    return Snapshot({p.entry.name: p for p in placed}, metadata, whole)


def _data_begin(header_bytes: int) -> int:
    """Where tensors begin behind a header, with room for it to grow as far as it can be read."""
    most = _aligned(LENGTH_BYTES + _MAX_HEADER_BYTES - ALIGNMENT + 1)
    if LENGTH_BYTES + header_bytes > most:
        raise errors.UnsupportedState(
            f"the state's plain data and its tensors' names take {header_bytes / 1e6:.1f} MB, and "
            f"{_MAX_HEADER_BYTES / 1e6:.1f} MB is the most; store what is large as a tensor: "
            "torch.frombuffer(bytearray(data), dtype=torch.uint8) makes one of bytes"
        )
    return min(_aligned(LENGTH_BYTES + header_bytes + header_bytes // 8 + 512), most)


def _listing(relative: Iterable[PlacedTensor]) -> tuple[str, str]:
    tree: dict[str, Any] = {}
    types: dict[str, Any] = {}
    for place in relative:
        entry = place.entry
        known = entry.dtype in WIDTHS
        if not known:
            types[entry.name] = [entry.dtype, entry.width, list(entry.shape)]
        tree[entry.name] = {
            "dtype": entry.dtype if known else "U8",
            "shape": list(entry.shape) if known else [entry.nbytes],
            "data_offsets": [place.begin, place.end],
        }
    return _compact(tree)[1:-1], _compact(types) if types else ""


def _header_text(
    listing: str, types: str, metadata: Mapping[str, str], written: Mapping[str, str] = _NONE
) -> bytes:
    described = {**metadata, TYPES_KEY: types} if types else metadata
    told = (f"{_compact(k)}:{written.get(k) or _compact(v)}" for k, v in described.items())
    comma = "," if listing else ""
    return f'{{"__metadata__":{{{",".join(told)}}}{comma}{listing}}}'.encode()


def _compact(tree: Any) -> str:
    return json.dumps(tree, separators=(",", ":"))


def _parse_tensors(
    listing: Mapping[str, Any], types: Mapping[str, Any], begin: int
) -> list[PlacedTensor]:
    """The tensors of a header; column by column, since a restore waits for thousands of them."""
    items = listing.values()
    shared: dict[Any, Any] = {}  # of tens of thousands many are alike, in type and shape
    shapes = [shared.setdefault(shape, shape) for shape in (tuple(i["shape"]) for i in items)]
    begins, ends = [], []
    for item in items:
        first, last = item["data_offsets"]
        begins.append(begin + first)
        ends.append(begin + last)
    _check_integers(shapes, begins, ends)
    dtypes = [shared.setdefault(item["dtype"], item["dtype"]) for item in items]
    widths = [WIDTHS[dtype] for dtype in dtypes]
    if types:
        for index, name in enumerate(listing):
            if name in types:
                kind, width, shape = types[name]
                dtypes[index], widths[index] = str(kind), int(width)
                shapes[index] = tuple(map(operator.index, shape))
    _check_shapes(listing, shapes, widths, zip(begins, ends, strict=True))
    names = map(sys.intern, listing)  # other files have the same
    return list(map(PlacedTensor, map(Entry, names, dtypes, shapes, widths), begins, ends))


def _check_integers(shapes: list[tuple[Any, ...]], *places: list[Any]) -> None:
    kinds = set(map(type, itertools.chain(*shapes, *places)))
    if not kinds <= {int}:
        found = sorted(kind.__name__ for kind in kinds)
        message = f"its shapes and offsets are of {found}"
        raise ValueError(message)


def _check_shapes(
    names: Iterable[str],
    shapes: list[tuple[int, ...]],
    widths: list[int],
    places: Iterable[tuple[int, int]],
) -> None:
    for name, shape, width, (begin, end) in zip(names, shapes, widths, places, strict=True):
        if len(shape) > _MAX_DIMENSIONS:
            message = f"{name} has {len(shape)} dimensions; {_MAX_DIMENSIONS} is the most"
            raise ValueError(message)
        if math.prod(shape) * width != end - begin or (shape and min(shape) < 0):
            message = f"{name} of shape {shape} cannot have {end - begin} bytes"
            raise ValueError(message)


def _check_offsets(placed: list[PlacedTensor], data_begin: int, length: int) -> None:
    expected = data_begin
    follows = all(here.end == there.begin for here, there in itertools.pairwise(placed))
    ordered = placed if follows else sorted(placed, key=lambda item: (item.begin, item.end))
    for place in ordered:
        if place.begin != expected:
            message = f"{place.entry.name} begins at {place.begin}, expected {expected}"
            raise errors.CorruptSnapshot(message)
        expected = place.end
    if expected != length:
        message = f"a snapshot's tensors end at {expected}, its bytes at {length}"
        raise errors.CorruptSnapshot(message)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
