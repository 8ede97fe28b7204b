# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The bytes of one save, in batches that a thread copies without the interpreter's lock."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from rover_kf.api.states import State
from rover_kf.checkpoint.format.snapshot import PlacedTensor
from rover_kf.trainer.staging.cuda import Pair
from rover_kf.trainer.state.addresses import Addresses
from rover_kf.trainer.state.flatten import copyable
from rover_kf.trainer.state.outline import tensor_specs

SlotSupplier = Callable[[], int]
"""Gives the number of the slot of a save."""

BATCH_BYTES = 4 << 20
"""A millisecond: what a thread may hold up that waits for the whole."""
SINGLE_THREAD_BYTES = 64 << 20
"""Where one thread copies and is waited for; how long a signal may wait, ten milliseconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Tensors that are copied in one call."""

    names: tuple[str, ...]
    indexes: tuple[int, ...]
    """Of each in the order of the state's tensors."""
    targets: tuple[Sequence[torch.Tensor], ...]
    """Of each slot, in the names' order."""
    deferred: bool
    """May be copied after save() has returned."""
    plain: bool
    """Torch can copy all of their types."""
    tensor_specs: Sequence[object]
    """Shapes and types of the targets."""


@dataclasses.dataclass(frozen=True, slots=True)
class CopySource:
    """What one save copies."""

    state: State
    tensors: Sequence[torch.Tensor]
    """Of the whole state."""
    data_ptrs: Addresses
    """Where they were when save() was called; of none where nothing is copied late."""
    on_device: bool
    """Whether some of them are on a CUDA device."""


def batches(
    placed: Iterable[PlacedTensor],
    names: Iterable[str],
    views: Sequence[Mapping[str, torch.Tensor]],
    deferred: frozenset[str],
    batch_bytes: int = BATCH_BYTES,
) -> tuple[Batch, ...]:
    """Put a layout's tensors into batches.

    Args:
        placed: in file order.
        names: in the order of the state's tensors.
        views: of each slot.
        deferred: names of those that may be copied late.
        batch_bytes: of the others, about.
    """
    found: list[Batch] = []
    ordered, places = list(placed), {name: place for place, name in enumerate(names)}
    for is_late in (False, True):
        chosen: list[str] = []
        size = 0
        for place in ordered:
            if (place.entry.name in deferred) is is_late:
                chosen.append(place.entry.name)
                size += place.entry.nbytes
            if size >= (BATCH_BYTES if is_late else batch_bytes):
                found.append(_batch(chosen, places, views, deferred=is_late))
                chosen, size = [], 0
        if chosen:
            found.append(_batch(chosen, places, views, deferred=is_late))
    return tuple(found)


def copy_calls(
    chosen: Iterable[Batch], slot: SlotSupplier, source: CopySource
) -> list[Callable[[], None]]:
    """What copies those batches' tensors on the host: a call each, of a large tensor one a piece.

    Args:
        chosen: batches.
        slot: gives the number of the one to copy into; asked by the calls, not before.
        source: of the save.
    """
    found: list[Callable[[], None]] = []
    for batch in chosen:
        alone = sources(batch, source.tensors)[0] if len(batch.names) == 1 else None
        if alone is not None and (parts := chunks(alone)):
            found += [functools.partial(_copy_chunk, batch, slot, alone, cut) for cut in parts]
        else:
            found.append(functools.partial(_copy_batch, batch, slot, source))
    return found


def chunks(tensor: torch.Tensor) -> list[slice]:
    """Pieces of the elements of a tensor that is worth several calls; none if one does."""
    if tensor.nbytes <= BATCH_BYTES or tensor.is_cuda or not tensor.is_contiguous():
        return []
    width = max(BATCH_BYTES // tensor.element_size(), 1)
    return [slice(begin, begin + width) for begin in range(0, tensor.numel(), width)]


def copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy values without the interpreter's lock.

    Args:
        targets: contiguous.
        sources: of the same shapes and types.
    """
    with torch.no_grad():
        torch._foreach_copy_(list(targets), list(sources))


def device_pairs(chosen: Iterable[Batch], slot: int, source: CopySource) -> list[Pair]:
    """Slot and source of every tensor of those batches that is on a CUDA device."""
    return [
        (target, live)
        for batch in chosen
        for target, live in zip(batch.targets[slot], sources(batch, source.tensors), strict=True)
        if live.is_cuda
    ]


def sources(batch: Batch, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a batch copies.

    Args:
        batch: of the state.
        tensors: all of it.
    """
    found = [tensors[place] for place in batch.indexes]
    return found if batch.plain else [copyable(tensor) for tensor in found]


def _copy_batch(batch: Batch, slot: SlotSupplier, source: CopySource) -> None:
    # Put together here: that may be after save has returned.
    live, targets = sources(batch, source.tensors), batch.targets[slot()]
    if source.on_device:
        pairs = [pair for pair in zip(targets, live, strict=True) if not pair[1].is_cuda]
        targets, live = [there for there, _ in pairs], [here for _, here in pairs]
    if live:
        copy(targets, live)


def _copy_chunk(batch: Batch, slot: SlotSupplier, source: torch.Tensor, chunk: slice) -> None:
    copy([batch.targets[slot()][0].view(-1)[chunk]], [source.view(-1)[chunk]])


def _batch(
    names: list[str],
    indexes: Mapping[str, int],
    views: Sequence[Mapping[str, torch.Tensor]],
    *,
    deferred: bool,
) -> Batch:
    targets = tuple([copyable(slot[name]) for name in names] for slot in views)
    plain = all(copyable(slot[name]) is slot[name] for slot in views for name in names)
    where = tuple(indexes[name] for name in names)
    return Batch(tuple(names), where, targets, deferred, plain, tensor_specs(targets[0]))
