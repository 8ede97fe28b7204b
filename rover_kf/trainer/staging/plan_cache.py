# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where everything of a save goes, remembered from one save to the next.

A state that changed its tensors (an optimizer's lazy state) gets a new layout and, if it needs one,
a larger arena; what was sealed before stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from rover_kf import errors
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.format.snapshot import Layout
from rover_kf.trainer.staging import copy_batches
from rover_kf.trainer.staging.copy_batches import Batch
from rover_kf.trainer.staging.mutation_check import unlike
from rover_kf.trainer.staging.slots import Slots
from rover_kf.trainer.state.addresses import listed
from rover_kf.trainer.state.flatten import Parts
from rover_kf.trainer.state.tensor_views import views


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A layout and its batches."""

    era: int
    """Of the recalled state: while it lasts, names, shapes and types are what they were."""
    signature: list[object]
    """Names, shapes and types."""
    late: frozenset[str]
    layout: Layout
    batches: tuple[Batch, ...]

    def leaves(self, late: frozenset[str]) -> bool:
        """Whether it leaves these, and no others, for later."""
        return self.late is late or self.late == late

    def fits(self, era: int, parts: Parts) -> bool:
        """Whether a state has what the layout was made for."""
        return self.era == era or self.signature == _signature(parts)


@dataclasses.dataclass(frozen=True, slots=True)
class _Head:
    """A header as it was written last."""

    layout: Layout
    told: Mapping[str, str]
    """Its metadata."""
    content: torch.Tensor


class Plans:
    """One a saver.

    Args:
        slots: to plan for.
        alone: whether one thread copies what cannot wait.
    """

    def __init__(self, slots: Slots, *, alone: bool) -> None:
        self._slots = slots
        self._batch_bytes = copy_batches.ALONE_BYTES if alone else copy_batches.BATCH_BYTES
        self._plan: Plan | None = None
        self._head: _Head | None = None

    def forget(self) -> None:
        """Let go of the slots' memory."""
        self._plan = None

    def alike(self, parts: Parts, late: frozenset[str]) -> bool:
        """Whether tensors that are copied at once have the shapes and types that were assumed.

        Args:
            parts: of the state.
            late: names of those that are copied late, and looked at then.
        """
        plan = self._plan
        if plan is None or not plan.leaves(late):
            return False
        tensors = listed(parts.tensors)
        now = (batch for batch in plan.batches if not batch.late)
        return not any(unlike(batch, tensors) for batch in now)

    def fit(self, era: int, parts: Parts, late: frozenset[str]) -> tuple[Plan, torch.Tensor]:
        """Where the tensors go, and the header's bytes.

        Args:
            era: of the names, shapes and types (rover_kf.trainer.state.flatten_cache).
            parts: of the state.
            late: names of those that may be copied late.

        Raises:
            ArenaTooSmall: they do not fit.
            SidecarUnavailable: a larger arena is needed and nobody answers.
        """
        self._slots.settle()
        plan = self._plan
        if plan is not None and plan.leaves(late) and plan.fits(era, parts):
            head = self._header(plan, parts)
            if head is not None:
                return plan, head
        self._plan = None
        layout = snapshot.plan(parts.entries(), parts.metadata)
        self._slots.reach(layout.length)
        placed = {place.entry.name: place for place in layout.placed}
        slots = [views(buffer, placed) for buffer in self._slots.buffers]
        batches = copy_batches.batches(layout.placed, parts.tensors, slots, late, self._batch_bytes)
        self._plan = plan = Plan(era, _signature(parts), late, layout, batches)
        head = self._header(plan, parts)
        if head is None:
            raise errors.CheckpointError("a new layout has no room for its own header")
        return plan, head

    def _header(self, plan: Plan, parts: Parts) -> torch.Tensor | None:
        """The bytes before the tensors; None if the layout has no room for them."""
        known = self._head
        if known is not None and known.layout is plan.layout and known.told is parts.metadata:
            return known.content
        made = snapshot.header(plan.layout, parts.metadata, parts.written)
        if made is None:
            return None
        content = torch.frombuffer(bytearray(made), dtype=torch.uint8)
        self._head = _Head(plan.layout, parts.metadata, content)
        return content


def _signature(parts: Parts) -> list[object]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in parts.tensors.items()]
