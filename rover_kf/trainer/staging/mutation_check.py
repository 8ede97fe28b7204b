# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether tensors that are copied after save() has returned stayed what they were at the call."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Sequence

import torch

from rover_kf import errors
from rover_kf.trainer.staging.copy_batches import Batch, CopySource, sources
from rover_kf.trainer.state.addresses import addresses
from rover_kf.trainer.state.outline import tensor_specs

_VERSION = operator.attrgetter("_version")
"""Torch's documented name for a tensor's counter of in-place changes."""


class StateMutated(errors.CheckpointError):
    """A step that is not saved, since something came in while it was copied beside training.

    Args:
        step: its number.
        reason: what came in, and what to do.
    """

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(f"step {step} is not saved: {reason}")
        self.step = step


@dataclasses.dataclass(frozen=True, slots=True)
class MutationWatch:
    """Of one save."""

    batches: Sequence[Batch]
    """Of those tensors."""
    source: CopySource
    versions: list[int]
    """Counters of in-place changes of all of the state's tensors; empty: none is watched."""

    def check(self) -> None:
        """Make sure that nothing changed under the copy.

        Raises:
            StateMutated: something did; the message names it.
        """
        if not self.batches:
            return
        self._check_values()
        for batch in self.batches:
            self._check_specs(batch)

    def _check_values(self) -> None:
        at, before = self.source.data_ptrs, self.versions
        now, now_at = _changes(self.source.tensors), addresses(self.source.tensors)
        if now == before and now_at == at:
            return
        named = [pair for batch in self.batches for pair in _names_and_indexes(batch)]
        touched = [name for name, i in named if (now[i], now_at[i]) != (before[i], at[i])]
        if not touched:
            return  # what was copied at once may change as it likes
        raise StateMutated(
            self.source.state.step,
            f"{', '.join(touched[:3])} changed in place, by something else than an optimizer's "
            f"step, before the copy was done ({len(touched)} of {len(named)} tensors); change them "
            "before save(), or pass overlap=False to Checkpointer",
        )

    def _check_specs(self, batch: Batch) -> None:
        other = _changed_tensors(batch, self.source.tensors)
        if other:
            raise StateMutated(
                self.source.state.step,
                f"{', '.join(other[:3])} got another shape or type before the copy was done; "
                "change them before save(), or pass overlap=False to Checkpointer",
            )


def start_watch(chosen: Sequence[Batch], source: CopySource) -> MutationWatch:
    """Begin to watch the tensors of batches."""
    return MutationWatch(chosen, source, _changes(source.tensors) if chosen else [])


def _changed_tensors(batch: Batch, tensors: Sequence[torch.Tensor]) -> list[str]:
    """Names of those that have another shape or type than the places for them."""
    live = sources(batch, tensors)
    if tensor_specs(live) == batch.tensor_specs:
        return []
    pairs = zip(batch.targets[0], live, strict=True)
    differ = [tensor_specs([there]) != tensor_specs([here]) for there, here in pairs]
    return [name for name, differs in zip(batch.names, differ, strict=True) if differs]


def _changes(tensors: Sequence[torch.Tensor]) -> list[int]:
    try:
        return [*map(_VERSION, tensors)]
    except RuntimeError:  # those of torch.inference_mode have no counter, and are copied at once
        return [0 if tensor.is_inference() else _VERSION(tensor) for tensor in tensors]


def _names_and_indexes(batch: Batch) -> Iterable[tuple[str, int]]:
    return zip(batch.names, batch.indexes, strict=True)
