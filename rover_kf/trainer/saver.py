# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Live tensors into a slot, at the speed of one copy.

Views of both slots are made once a layout; a save writes the header and calls
``torch._foreach_copy_``, which does all copies without the GIL and measured fastest with one torch
thread. A state that changed its tensors (an optimizer's lazy state) gets a new layout and, if it
needs one, a larger arena; what was sealed before stays.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import pathlib
import time
from collections.abc import Callable, Mapping

import torch

from rover_kf import errors
from rover_kf.api.messages import ArenaReply
from rover_kf.checkpoint import snapshot
from rover_kf.checkpoint.arena import Arena
from rover_kf.checkpoint.control import SLOTS, Seal
from rover_kf.checkpoint.snapshot import Entry, Layout
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.state import Parts, dtype_of

AskArena = Callable[[int], ArenaReply]
"""Asks the sidecar for slots of that many bytes."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """A layout and views of the slots that fit it."""

    entries: tuple[Entry, ...]
    layout: Layout
    views: tuple[Mapping[str, torch.Tensor], ...]
    """Of each slot, by tensor name."""


class Saver:
    """One a training process.

    Args:
        settings: of the process.
        ask_arena: asks the sidecar for slots.
        replicated: whether every rank holds the same state.
    """

    def __init__(self, settings: TrainerSettings, ask_arena: AskArena, *, replicated: bool) -> None:
        self._settings, self._ask_arena, self._replicated = settings, ask_arena, replicated
        self._arena: Arena | None = None
        self._maps: tuple[mmap.mmap, ...] = ()
        self._plan: _Plan | None = None

    def save(self, step: int, parts: Parts) -> tuple[Seal, float]:
        """Copy the state into a slot and seal it.

        Returns:
            The seal, and the seconds that it took from choosing the slot on.

        Raises:
            ArenaTooSmall: the state does not fit.
            SidecarUnavailable: a larger arena is needed and nobody answers.
            CheckpointError: both slots are being read for a minute.
        """
        plan, head = self._fit(parts)
        arena = self._arena
        assert arena is not None  # noqa: S101 - _fit made it
        begun = time.perf_counter()
        with arena.fill() as filling:
            self._maps[filling.slot][: len(head)] = head
            _copy(list(plan.views[filling.slot].items()), parts.tensors)
            seal = filling.seal(
                step=step,
                length=plan.layout.length,
                rank=self._settings.rank,
                world_size=self._settings.world_size,
                round_=self._settings.round,
                replicated=self._replicated,
            )
        return seal, time.perf_counter() - begun

    def close(self) -> None:
        """Let go of the slots' memory."""
        self._plan, self._maps, self._arena = None, (), None

    def _fit(self, parts: Parts) -> tuple[_Plan, bytes]:
        entries = parts.entries()
        plan = self._plan
        if plan is not None and plan.entries == entries:
            head = snapshot.header(plan.layout, parts.metadata)
            if head is not None:
                return plan, head
        layout = snapshot.plan(entries, parts.metadata)
        self._reach(layout.length)
        views = tuple(_views(view, layout) for view in self._maps)
        self._plan = plan = _Plan(entries, layout, views)
        head = snapshot.header(layout, parts.metadata)
        if head is None:
            raise errors.CheckpointError("a new layout has no room for its own header")
        return plan, head

    def _reach(self, length: int) -> None:
        """Have both slots mapped with at least ``length`` bytes."""
        if self._maps and len(self._maps[0]) >= length:
            return
        self._plan = None
        reply = self._ask_arena(length)
        self._arena = Arena(pathlib.Path(reply.directory))
        self._maps = tuple(
            _map(self._arena.slot_path(slot), self._arena.slot_bytes()) for slot in SLOTS
        )


def _map(path: pathlib.Path, size: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def _views(buffer: mmap.mmap, layout: Layout) -> Mapping[str, torch.Tensor]:
    return views(buffer, {place.entry.name: place for place in layout.placed})


def views(buffer: mmap.mmap, placed: Mapping[str, snapshot.Placed]) -> Mapping[str, torch.Tensor]:
    """Tensors over a snapshot's bytes, by name; they keep the mapping alive."""
    whole = torch.frombuffer(buffer, dtype=torch.uint8)
    found: dict[str, torch.Tensor] = {}
    for name, place in placed.items():
        dtype, shape = dtype_of(place.entry.dtype), place.entry.shape
        if place.begin == place.end:
            found[name] = torch.empty(shape, dtype=dtype)
        else:
            found[name] = whole[place.begin : place.end].view(dtype).view(shape)
    return found


def _copy(targets: list[tuple[str, torch.Tensor]], sources: Mapping[str, torch.Tensor]) -> None:
    if not targets:
        return
    threads = torch.get_num_threads()
    if threads != 1:
        torch.set_num_threads(1)
    try:
        with torch.no_grad():
            torch._foreach_copy_(
                [target for _, target in targets], [sources[name] for name, _ in targets]
            )
    finally:
        if threads != 1:
            torch.set_num_threads(threads)
