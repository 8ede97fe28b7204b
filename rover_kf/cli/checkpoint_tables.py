# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on storage as text for a terminal, and as JSON; pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from rover_kf.api import codec
from rover_kf.checkpoint_tools.consolidated_state import WholeState
from rover_kf.checkpoint_tools.diff import Difference
from rover_kf.checkpoint_tools.listing import Listed
from rover_kf.checkpoint_tools.plain_values import values
from rover_kf.checkpoint_tools.verify import Checked
from rover_kf.cli.recommendation_text import amount

_MOST_SHOWN = 80
"""Characters of a plain value: a generator's state is thousands."""
_AGES = ((86_400, "d"), (3600, "h"), (60, "min"))


def age(seconds: float) -> str:
    """How long ago, in its largest unit."""
    for length, unit in _AGES:
        if seconds >= length:
            return f"{int(seconds / length)} {unit}"
    return f"{max(int(seconds), 0)} s"


def listed(found: Iterable[Listed], now: float) -> Table:
    """Checkpoints, one a row.

    Args:
        found: oldest first.
        now: Unix seconds.
    """
    columns = ("step", "generation", "ranks", "state", "files", "bytes", "age", "metrics", "")
    table = Table(*columns, box=None, collapse_padding=True)
    for item in found:
        table.add_row(
            str(item.step),
            str(item.generation),
            "-" if item.world_size is None else str(item.world_size),
            item.kind or "-",
            str(item.files),
            amount(item.bytes, "B"),
            "-" if item.saved_at is None else age(now - item.saved_at),
            Text(_metrics(item.metrics or {})),
            Text(item.problem or "whole", style="red" if item.problem else ""),
        )
    return table


def verdict(found: Checked) -> Iterator[str]:
    """One checkpoint's, one line and one for each damage."""
    size = amount(sum(file.length for file in found.files), "B")
    word = "unfinished" if found.unfinished else "whole" if found.whole else "DAMAGED"
    word = "UNREADABLE" if found.unread else word
    yield f"{found.name}: {word}, {size} in {len(found.files)} files"
    for file in found.files:
        if file.problem:
            yield f"  {file.problem}"


def summary(state: WholeState) -> str:
    """What a state amounts to, in a few words."""
    tensors = state.content.tensors.values()
    size = amount(sum(place.entry.nbytes for place in tensors), "B")
    return f"step {state.manifest.step}, {len(tensors)} tensors, {size}"


def own_note(state: WholeState) -> str:
    """What of a state is not the same on every rank."""
    return (
        f"note: {len(state.own)} tensors and the plain values are rank {state.rank}'s own; each "
        f"of the {state.manifest.world_size} ranks has its own, see --rank"
    )


def shown(state: WholeState) -> Iterator[Table | Text]:
    """A checkpoint's manifest, tensors and plain values."""
    content = state.manifest
    saved = dt.datetime.fromtimestamp(content.saved_at).astimezone().strftime("%F %T")
    held = ["replicated"] * content.replicated + ["sharded"] * content.pieces
    files = Table("file", "rank", "bytes", "CRC-32C", box=None)
    for file in content.files:
        files.add_row(file.name, str(file.rank), str(file.length), f"{file.checksum:08x}")
    yield Text(
        f"{state.folder.location}\nstep {content.step}, generation {content.generation}, written "
        f"by {content.world_size} ranks ({', '.join(held) or 'each rank its own'}) at {saved}\n"
        f"metrics: {_metrics(content.metrics)}"
    )
    yield files
    tensors, own = Table("tensor", "type", "shape", "bytes", "whose", box=None), state.own
    for place in sorted(state.content.tensors.values(), key=lambda place: place.entry.name):
        entry = place.entry
        whose = f"rank {state.rank}'s" if entry.name in own else "all ranks'"
        shape = str(list(entry.shape))
        tensors.add_row(Text(entry.name), entry.dtype, Text(shape), str(entry.nbytes), whose)
    yield tensors
    plain = Table("value", "content", box=None)
    for value in values(state.tree()):
        plain.add_row(Text(value.name), Text(_cut(repr(value.content))))
    yield plain
    yield Text(summary(state))
    if own and content.world_size > 1:
        yield Text(own_note(state))


def described(state: WholeState) -> dict[str, Any]:
    """The same for programs; plain values as docs/checkpoint-format.md encodes them."""
    places = sorted(state.content.tensors.values(), key=lambda place: place.entry.name)
    own = state.own
    return {
        "location": state.folder.location,
        "manifest": codec.encode(state.manifest),
        "rank": state.rank,
        "tensors": [
            {
                "name": place.entry.name,
                "dtype": place.entry.dtype,
                "shape": list(place.entry.shape),
                "bytes": place.entry.nbytes,
                "own": place.entry.name in own,
            }
            for place in places
        ],
        "values": [{"name": v.name, "value": v.encoded} for v in values(state.tree())],
    }


def difference(found: Difference) -> str:
    """One difference in a line."""
    whose = f" of rank {found.rank}" if found.rank else ""
    # Of two long ones that begin alike the place where they no longer are.
    pairs = enumerate(zip(found.a, found.b, strict=False))
    alike = next((at for at, (a, b) in pairs if a != b), min(len(found.a), len(found.b)))
    begin = max(alike - _MOST_SHOWN // 2, 0)
    sides = " | ".join(_cut(side, begin) or "-" for side in (found.a, found.b))
    compared = found.comparison
    if compared is not None:
        largest = "-" if compared.largest is None else f"{compared.largest:.6g}"
        sides = (
            f"{found.a}: {compared.differing} of {compared.elements} elements differ, at most by "
            f"{largest}"
        )
        if compared.not_finite:
            sides += f", {compared.not_finite} by no finite number"
    return f"{found.what} {found.name}{whose}: {found.kind}: {sides}"


def comparison(a: WholeState, b: WholeState, count: int) -> str:
    """What a comparison came to."""
    worlds = a.manifest.world_size, b.manifest.world_size
    note = "" if worlds[0] == worlds[1] else f" (written by {worlds[0]} and {worlds[1]} ranks)"
    if count:
        return f"{count} differences between {_name(a)} and {_name(b)}{note}"
    return f"{_name(a)} and {_name(b)} are equal bit by bit{note}"


def _cut(text: str, begin: int = 0) -> str:
    """As much of a text as a line takes, from there on if it is longer."""
    if len(text) <= _MOST_SHOWN:
        return text
    shown = text[begin : begin + _MOST_SHOWN]
    return "…" * (begin > 0) + shown + "…" * (begin + _MOST_SHOWN < len(text))


def _metrics(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in found.items()) or "-"


def _name(state: WholeState) -> str:
    return state.folder.name
