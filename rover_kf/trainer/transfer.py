# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The bytes of one save, in batches that a thread copies without the interpreter's lock."""

from __future__ import annotations

import array
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch

from rover_kf import errors
from rover_kf.checkpoint.snapshot import Placed
from rover_kf.trainer.device import Pair
from rover_kf.trainer.state import copyable

BATCH_BYTES = 4 << 20
"""A millisecond: what a thread may hold up that waits for the whole."""
ALONE_BYTES = 64 << 20
"""Where one thread copies and is waited for; how long a signal may wait, ten milliseconds."""


_VERSION = operator.attrgetter("_version")
"""Torch's documented name for a tensor's counter of in-place changes."""

Addresses: TypeAlias = "array.array[int]"
"""Where tensors have their bytes, in their order."""

NOWHERE: Addresses = array.array("Q")
"""Of no tensor."""


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Tensors that are copied in one call."""

    names: tuple[str, ...]
    places: tuple[int, ...]
    """Of each in the order of the state's tensors."""
    targets: tuple[Sequence[torch.Tensor], ...]
    """Of each slot, in the names' order."""
    late: bool
    """May be copied after save() has returned."""
    plain: bool
    """Torch can copy all of their types."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """What one save copies."""

    step: int
    tensors: Sequence[torch.Tensor]
    """Of the whole state."""
    at: Addresses
    """Where they were when save() was called; of none where nothing is copied late."""
    on_device: bool
    """Whether some of them are on a CUDA device."""


@dataclasses.dataclass(frozen=True, slots=True)
class Watch:
    """What tells whether the tensors changed that are still being copied."""

    batches: Sequence[Batch]
    """Of those tensors."""
    source: Source
    before: list[int]
    """Counters of in-place changes of all of the state's tensors; empty: none is watched."""

    def check(self) -> None:
        """Make sure that nothing changed under the copy.

        Raises:
            CheckpointError: something did; the message names it.
        """
        if not self.batches:
            return
        at, before = self.source.at, self.before
        now, now_at = _changes(self.source.tensors), addresses(self.source.tensors)
        if now == before and now_at == at:
            return
        named = [pair for batch in self.batches for pair in _named(batch)]
        touched = [name for name, i in named if (now[i], now_at[i]) != (before[i], at[i])]
        if not touched:
            return  # what was copied at once may change as it likes
        raise errors.CheckpointError(
            f"step {self.source.step} is not saved: {', '.join(touched[:3])} changed in place, by "
            "something else than an optimizer's step, before the copy was done "
            f"({len(touched)} of {len(named)} tensors); change them before save(), or "
            "pass overlap=False to Checkpointer"
        )


def watch(chosen: Sequence[Batch], source: Source) -> Watch:
    """Begin to watch the tensors of batches."""
    return Watch(chosen, source, _changes(source.tensors) if chosen else [])


def addresses(tensors: Iterable[torch.Tensor]) -> Addresses:
    """Where tensors have their bytes."""
    return array.array("Q", map(torch.Tensor.data_ptr, tensors))


def batches(
    placed: Iterable[Placed],
    names: Iterable[str],
    views: Sequence[Mapping[str, torch.Tensor]],
    late: frozenset[str],
    batch_bytes: int = BATCH_BYTES,
) -> tuple[Batch, ...]:
    """Put a layout's tensors into batches.

    Args:
        placed: in file order.
        names: in the order of the state's tensors.
        views: of each slot.
        late: names of those that may be copied late.
        batch_bytes: of the others, about.
    """
    found: list[Batch] = []
    ordered, places = list(placed), {name: place for place, name in enumerate(names)}
    for is_late in (False, True):
        chosen: list[str] = []
        size = 0
        for place in ordered:
            if (place.entry.name in late) is is_late:
                chosen.append(place.entry.name)
                size += place.entry.nbytes
            if size >= (BATCH_BYTES if is_late else batch_bytes):
                found.append(_batch(chosen, places, views, late=is_late))
                chosen, size = [], 0
        if chosen:
            found.append(_batch(chosen, places, views, late=is_late))
    return tuple(found)


def copies(chosen: Iterable[Batch], slot: int, source: Source) -> list[Callable[[], None]]:
    """What copies those batches' tensors on the host, a call each.

    Args:
        chosen: batches.
        slot: to copy into.
        source: of the save.
    """
    found: list[Callable[[], None]] = []
    for batch in chosen:
        if len(batch.names) > 1 and not source.on_device:
            # Put together by who copies it: that may be after save has returned.
            found.append(functools.partial(_copy_batch, batch, slot, source.tensors))
            continue
        targets, sources = _pairs(batch, slot, source.tensors)
        if source.on_device:
            pairs = [p for p in zip(targets, sources, strict=True) if not p[1].is_cuda]
            targets, sources = [there for there, _ in pairs], [here for _, here in pairs]
        found += calls(targets, sources)
    return found


def calls(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]
) -> list[Callable[[], None]]:
    """What copies tensors on the host: one call, of a single large one a call for each piece.

    Args:
        targets: contiguous.
        sources: of the same shapes and types.
    """
    if len(sources) == 1 and sources[0].nbytes > BATCH_BYTES and sources[0].is_contiguous():
        return _cuts(targets[0], sources[0])
    return [functools.partial(_copy, targets, sources)]


def device_pairs(chosen: Iterable[Batch], slot: int, source: Source) -> list[Pair]:
    """Slot and source of every tensor of those batches that is on a CUDA device."""
    tensors = source.tensors
    return [
        (target, tensors[place])
        for batch in chosen
        for place, target in zip(batch.places, batch.targets[slot], strict=True)
        if tensors[place].is_cuda
    ]


def _pairs(
    batch: Batch, slot: int, tensors: Sequence[torch.Tensor]
) -> tuple[Sequence[torch.Tensor], list[torch.Tensor]]:
    sources = [tensors[place] for place in batch.places]
    if not batch.plain:
        sources = [copyable(source) for source in sources]
    return batch.targets[slot], sources


def _copy_batch(batch: Batch, slot: int, tensors: Sequence[torch.Tensor]) -> None:
    _copy(*_pairs(batch, slot, tensors))


def _changes(tensors: Iterable[torch.Tensor]) -> list[int]:
    return [*map(_VERSION, tensors)]


def _named(batch: Batch) -> Iterable[tuple[str, int]]:
    return zip(batch.names, batch.places, strict=True)


def _batch(
    names: list[str],
    places: Mapping[str, int],
    views: Sequence[Mapping[str, torch.Tensor]],
    *,
    late: bool,
) -> Batch:
    targets = tuple([copyable(slot[name]) for name in names] for slot in views)
    plain = all(copyable(slot[name]) is slot[name] for slot in views for name in names)
    return Batch(tuple(names), tuple(places[name] for name in names), targets, late, plain)


def _cuts(target: torch.Tensor, source: torch.Tensor) -> list[Callable[[], None]]:
    width = max(BATCH_BYTES // source.element_size(), 1)
    there, here = target.view(-1), source.view(-1)
    return [
        functools.partial(_copy, [there[begin : begin + width]], [here[begin : begin + width]])
        for begin in range(0, here.numel(), width)
    ]


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        torch._foreach_copy_(list(targets), list(sources))
