# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The bytes of one save, in batches that a thread copies without the interpreter's lock."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from rover_kf import errors
from rover_kf.checkpoint.snapshot import Placed
from rover_kf.trainer.device import Pair
from rover_kf.trainer.state import copyable

BATCH_BYTES = 4 << 20
"""A millisecond: what a thread may hold up that waits for the whole."""
ALONE_BYTES = 64 << 20
"""Where one thread copies and is waited for; how long a signal may wait, ten milliseconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Tensors that are copied in one call."""

    names: tuple[str, ...]
    targets: tuple[Sequence[torch.Tensor], ...]
    """Of each slot, in the names' order."""
    late: bool
    """May be copied after save() has returned."""
    plain: bool
    """Torch can copy all of their types."""


@dataclasses.dataclass(frozen=True, slots=True)
class Watch:
    """Counters of in-place changes of the tensors that are still being copied."""

    step: int
    names: tuple[str, ...]
    tensors: list[torch.Tensor]
    before: list[int]

    def check(self) -> None:
        """Make sure that nothing changed under the copy.

        Raises:
            CheckpointError: something did; the message names it.
        """
        now = _changes(self.tensors)
        if now == self.before:
            return
        counts = zip(self.names, now, self.before, strict=True)
        touched = [name for name, count, before in counts if count != before]
        raise errors.CheckpointError(
            f"step {self.step} is not saved: {', '.join(touched[:3])} changed in place, by "
            "something else than an optimizer's step, before the copy was done "
            f"({len(touched)} of {len(self.names)} tensors); change them before save(), or "
            "pass overlap=False to Checkpointer"
        )


def watch(step: int, tensors: Mapping[str, torch.Tensor], names: Iterable[str]) -> Watch:
    """Begin to watch tensors of a step."""
    named = tuple(names)
    watched = [tensors[name] for name in named]
    return Watch(step, named, watched, _changes(watched))


def batches(
    placed: Iterable[Placed],
    views: Sequence[Mapping[str, torch.Tensor]],
    late: frozenset[str],
    batch_bytes: int = BATCH_BYTES,
) -> tuple[Batch, ...]:
    """Put a layout's tensors into batches.

    Args:
        placed: in file order.
        views: of each slot.
        late: names of those that may be copied late.
        batch_bytes: of the others, about.
    """
    found: list[Batch] = []
    ordered = list(placed)
    for is_late in (False, True):
        names: list[str] = []
        size = 0
        for place in ordered:
            if (place.entry.name in late) is is_late:
                names.append(place.entry.name)
                size += place.entry.nbytes
            if size >= (BATCH_BYTES if is_late else batch_bytes):
                found.append(_batch(names, views, late=is_late))
                names, size = [], 0
        if names:
            found.append(_batch(names, views, late=is_late))
    return tuple(found)


def copies(
    chosen: Iterable[Batch], slot: int, tensors: Mapping[str, torch.Tensor], *, on_device: bool
) -> list[Callable[[], None]]:
    """What copies those batches' tensors on the host, a call each.

    Args:
        chosen: batches.
        slot: to copy into.
        tensors: by name.
        on_device: whether some of them are on a CUDA device.
    """
    found: list[Callable[[], None]] = []
    for batch in chosen:
        if len(batch.names) > 1 and not on_device:
            # Put together by who copies it: that may be after save has returned.
            found.append(functools.partial(_copy_batch, batch, slot, tensors))
            continue
        targets, sources = _pairs(batch, slot, tensors)
        if on_device:
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


def device_pairs(
    chosen: Iterable[Batch], slot: int, tensors: Mapping[str, torch.Tensor]
) -> list[Pair]:
    """Slot and source of every tensor of those batches that is on a CUDA device."""
    return [
        (target, tensors[name])
        for batch in chosen
        for name, target in zip(batch.names, batch.targets[slot], strict=True)
        if tensors[name].is_cuda
    ]


def _pairs(
    batch: Batch, slot: int, tensors: Mapping[str, torch.Tensor]
) -> tuple[Sequence[torch.Tensor], list[torch.Tensor]]:
    sources = [tensors[name] for name in batch.names]
    if not batch.plain:
        sources = [copyable(source) for source in sources]
    return batch.targets[slot], sources


def _copy_batch(batch: Batch, slot: int, tensors: Mapping[str, torch.Tensor]) -> None:
    _copy(*_pairs(batch, slot, tensors))


def _changes(tensors: Iterable[torch.Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors]  # noqa: SLF001 - torch's documented name for it


def _batch(names: list[str], views: Sequence[Mapping[str, torch.Tensor]], *, late: bool) -> Batch:
    targets = tuple([copyable(slot[name]) for name in names] for slot in views)
    plain = all(copyable(slot[name]) is slot[name] for slot in views for name in names)
    return Batch(tuple(names), targets, late, plain)


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
