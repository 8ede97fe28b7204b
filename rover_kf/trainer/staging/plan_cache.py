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
from rover_kf.checkpoint.format.snapshot import SnapshotLayout
from rover_kf.trainer.staging import copy_batches
from rover_kf.trainer.staging.copy_batches import Batch
from rover_kf.trainer.staging.slots import SlotBuffers
from rover_kf.trainer.state.flatten import FlatState
from rover_kf.trainer.state.tensor_views import tensor_views


@dataclasses.dataclass(frozen=True, slots=True)
class CopyPlan:
    """A layout and its batches."""

    generation: int
    """Of the recalled state: while it lasts, names, shapes and types are what they were."""
    signature: list[object]
    """Names, shapes and types."""
    deferred: frozenset[str]
    layout: SnapshotLayout
    batches: tuple[Batch, ...]

    def defers(self, deferred: frozenset[str]) -> bool:
        """Whether it leaves these, and no others, for later."""
        return self.deferred is deferred or self.deferred == deferred

    def fits(self, generation: int, parts: FlatState) -> bool:
        """Whether a state has what the layout was made for."""
        return self.generation == generation or self.signature == _signature(parts)


@dataclasses.dataclass(frozen=True, slots=True)
class _CachedHeader:
    """A header as it was written last."""

    layout: SnapshotLayout
    metadata: Mapping[str, str]
    """Its metadata."""
    content: torch.Tensor


class CopyPlanCache:
    """One a saver.

    Args:
        slots: to plan for.
        single_thread: whether one thread copies what cannot wait.
    """

    def __init__(self, slots: SlotBuffers, *, single_thread: bool) -> None:
        self._slots = slots
        self._batch_bytes = (
            copy_batches.SINGLE_THREAD_BYTES if single_thread else copy_batches.BATCH_BYTES
        )
        self._plan: CopyPlan | None = None
        self._head: _CachedHeader | None = None

    def clear(self) -> None:
        """Let go of the slots' memory."""
        self._plan = None

    def plan_copy(
        self, generation: int, parts: FlatState, deferred: frozenset[str]
    ) -> tuple[CopyPlan, torch.Tensor]:
        """Where the tensors go, and the header's bytes.

        Args:
            generation: of the names, shapes and types (rover_kf.trainer.state.flatten_cache).
            parts: of the state.
            deferred: names of those that may be copied late.

        Raises:
            ArenaTooSmall: they do not fit.
            SidecarUnavailable: a larger arena is needed and nobody answers.
        """
        self._slots.wait_prepared()
        plan = self._plan
        if plan is not None and plan.defers(deferred) and plan.fits(generation, parts):
            head = self._header(plan, parts)
            if head is not None:
                return plan, head
        self._plan = None
        layout = snapshot.plan(parts.entries(), parts.metadata)
        self._slots.ensure(layout.length)
        placed = {place.entry.name: place for place in layout.tensors}
        slots = [tensor_views(buffer, placed) for buffer in self._slots.buffers]
        batches = copy_batches.batches(
            layout.tensors, parts.tensors, slots, deferred, self._batch_bytes
        )
        self._plan = plan = CopyPlan(generation, _signature(parts), deferred, layout, batches)
        head = self._header(plan, parts)
        if head is None:
            raise errors.CheckpointError("a new layout has no room for its own header")
        return plan, head

    def _header(self, plan: CopyPlan, parts: FlatState) -> torch.Tensor | None:
        """The bytes before the tensors; None if the layout has no room for them."""
        known = self._head
        if known is not None and known.layout is plan.layout and known.metadata is parts.metadata:
            return known.content
        made = snapshot.header(plan.layout, parts.metadata, parts.json_metadata)
        if made is None:
            return None
        content = torch.frombuffer(bytearray(made), dtype=torch.uint8)
        self._head = _CachedHeader(plan.layout, parts.metadata, content)
        return content


def _signature(parts: FlatState) -> list[object]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in parts.tensors.items()]
