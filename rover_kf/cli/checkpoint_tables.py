# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on storage as text for a terminal, and as JSON; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from rover_kf.api import codec
from rover_kf.checkpoint_tools.consolidated_state import ConsolidatedState, iter_values
from rover_kf.checkpoint_tools.diff import StateDifference
from rover_kf.checkpoint_tools.inspection import CheckpointInfo, CheckpointVerification
from rover_kf.cli.recommend import format_amount
from rover_kf.client.progress_text import format_time

_MAX_CHARS = 80
"""Characters of a plain value: a generator's state is thousands."""
_AGES = ((86_400, "d"), (3600, "h"), (60, "min"))


def age(seconds: float) -> str:
    """How long ago, in its largest unit."""
    for length, unit in _AGES:
        if seconds >= length:
            return f"{int(seconds / length)} {unit}"
    return f"{max(int(seconds), 0)} s"


def checkpoint_table(checkpoints: Iterable[CheckpointInfo], now: float) -> Table:
    """Return checkpoints, oldest first, one a row."""
    columns = ("step", "round", "ranks", "state", "files", "bytes", "age", "metrics", "")
    table = Table(*columns, box=None, collapse_padding=True)
    for item in checkpoints:
        table.add_row(
            str(item.step),
            str(item.round),
            "-" if item.world_size is None else str(item.world_size),
            item.kind or "-",
            str(item.files),
            format_amount(item.bytes, "B"),
            "-" if item.saved_at is None else age(now - item.saved_at),
            Text(_format_metrics(item.metrics or {})),
            Text(item.problem or "whole", style="red" if item.problem else ""),
        )
    return table


def format_verification(result: CheckpointVerification) -> Iterator[str]:
    """One checkpoint's, one line and one for each damage."""
    size = format_amount(sum(file.length for file in result.files), "B")
    word = "unfinished" if result.unfinished else "whole" if result.is_intact else "DAMAGED"
    word = "UNREADABLE" if result.is_unreadable else word
    yield f"{result.name}: {word}, {size} in {len(result.files)} files"
    for file in result.files:
        if file.problem:
            yield f"  {file.problem}"


def format_summary(state: ConsolidatedState) -> str:
    """What a state amounts to, in a few words."""
    tensors = state.content.tensors.values()
    size = format_amount(sum(place.entry.nbytes for place in tensors), "B")
    return f"step {state.manifest.state.step}, {len(tensors)} tensors, {size}"


def format_rank_local_note(state: ConsolidatedState) -> str:
    """What of a state is not the same on every rank."""
    return (
        f"note: {len(state.rank_local)} tensors and the plain values are rank "
        f"{state.rank}'s own; each of the {state.manifest.world_size} ranks has its own, see --rank"
    )


def render_state(state: ConsolidatedState) -> Iterator[Table | Text]:
    """A checkpoint's manifest, tensors and plain values."""
    content = state.manifest
    saved = format_time(content.saved_at)
    held = ["replicated"] * content.replicated + ["sharded"] * content.pieces
    files = Table("file", "rank", "bytes", "CRC-32C", box=None)
    for file in content.files:
        files.add_row(file.name, str(file.rank), str(file.length), f"{file.checksum:08x}")
    yield Text(
        f"{state.folder.location}\n{content.state} of {content.owner or 'an unnamed job'}, written "
        f"by {content.world_size} ranks ({', '.join(held) or 'each rank its own'}) at {saved}\n"
        f"metrics: {_format_metrics(content.metrics)}"
    )
    yield files
    tensors, own = Table("tensor", "type", "shape", "bytes", "whose", box=None), state.rank_local
    for place in sorted(state.content.tensors.values(), key=lambda tensor: tensor.entry.name):
        entry = place.entry
        whose = f"rank {state.rank}'s" if entry.name in own else "all ranks'"
        shape = str(list(entry.shape))
        tensors.add_row(Text(entry.name), entry.dtype, Text(shape), str(entry.nbytes), whose)
    yield tensors
    plain = Table("value", "content", box=None)
    for value in iter_values(state.tree()):
        plain.add_row(Text(value.name), Text(_truncate(repr(value.content))))
    yield plain
    yield Text(format_summary(state))
    if own and content.world_size > 1:
        yield Text(format_rank_local_note(state))


def describe_state(state: ConsolidatedState) -> dict[str, Any]:
    """The same for programs; plain values as docs/checkpoint-format.md encodes them."""
    places = sorted(state.content.tensors.values(), key=lambda tensor: tensor.entry.name)
    own = state.rank_local
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
        "values": [{"name": v.name, "value": v.encoded} for v in iter_values(state.tree())],
    }


def format_difference(difference: StateDifference) -> str:
    """One difference in a line."""
    whose = f" of rank {difference.rank}" if difference.rank else ""
    # Of two long ones that begin alike the place where they no longer are.
    pairs = enumerate(zip(difference.a, difference.b, strict=False))
    alike = next((at for at, (a, b) in pairs if a != b), min(len(difference.a), len(difference.b)))
    begin = max(alike - _MAX_CHARS // 2, 0)
    sides = " | ".join(_truncate(side, begin) or "-" for side in (difference.a, difference.b))
    compared = difference.comparison
    if compared is not None:
        largest = "-" if compared.max_difference is None else f"{compared.max_difference:.6g}"
        sides = (
            f"{difference.a}: {compared.differing} of {compared.elements} elements differ, "
            f"at most by {largest}"
        )
        if compared.not_finite:
            sides += f", {compared.not_finite} by no finite number"
    return f"{difference.element} {difference.name}{whose}: {difference.kind}: {sides}"


def format_comparison(a: ConsolidatedState, b: ConsolidatedState, count: int) -> str:
    """What a comparison came to."""
    worlds = a.manifest.world_size, b.manifest.world_size
    note = "" if worlds[0] == worlds[1] else f" (written by {worlds[0]} and {worlds[1]} ranks)"
    if count:
        return f"{count} differences between {_format_name(a)} and {_format_name(b)}{note}"
    return f"{_format_name(a)} and {_format_name(b)} are equal bit by bit{note}"


def _truncate(text: str, begin: int = 0) -> str:
    """As much of a text as a line takes, from there on if it is longer."""
    if len(text) <= _MAX_CHARS:
        return text
    shown = text[begin : begin + _MAX_CHARS]
    return "…" * (begin > 0) + shown + "…" * (begin + _MAX_CHARS < len(text))


def _format_metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in metrics.items()) or "-"


def _format_name(state: ConsolidatedState) -> str:
    return state.folder.name
