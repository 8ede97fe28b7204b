# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The phase of this process, by which a hang's threshold is chosen.

The reporter's thread sends it even while the main thread is stuck. ``model.eval()`` shows
evaluations.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch

from rover_kf.api.faults import hang_reports


@runtime_checkable
class StreamState(Protocol):
    """An entry of a state whose data come while training goes on."""

    def is_waiting(self) -> bool:
        """Whether no rank has anything to train on until more comes; from any thread."""


class Phase:
    """The phase of one training process."""

    def __init__(self) -> None:
        self._begun = self._stepped = self._ended = False
        self._saving = self._saves = 0
        self._modules: tuple[weakref.ref[torch.nn.Module], ...] = ()
        self._streams: tuple[StreamState, ...] = ()

    def watch_state(self, state: Mapping[str, object]) -> None:
        """Ask the streams of a state whether they have anything."""
        values = (value for value in state.values() if not isinstance(value, type))
        self._streams = tuple(value for value in values if isinstance(value, StreamState))

    def begin(self) -> None:
        """Note that a restore was requested: steps follow."""
        self._begun = True

    def record_step(self, state: Mapping[str, object], *, last: bool) -> None:
        """Note the end of a step; ``eval()`` of the state's modules shows evaluations."""
        if not self._stepped:
            self._modules = tuple(weakref.ref(module) for module in _modules(state))
        self._stepped, self._ended = True, last

    def end(self) -> None:
        """Note that no training follows."""
        self._ended = True

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """While a checkpoint is written, or waited for."""
        self._saving += 1
        self._saves += 1
        try:
            yield
        finally:
            self._saving -= 1

    def current(self) -> str:
        """One of the words of ``rover_kf.api.faults.hang_reports``, or nothing; from any thread."""
        if self._ended:
            return hang_reports.ENDED
        if any(stream.is_waiting() for stream in self._streams):
            return hang_reports.WAITING
        if not self._stepped:
            return hang_reports.START if self._begun and not self._saves else ""
        if self._saving:
            return hang_reports.CHECKPOINT
        return hang_reports.EVALUATION if self._evaluates() else hang_reports.TRAINING

    def _evaluates(self) -> bool:
        modules = [module for held in self._modules if (module := held()) is not None]
        return any(not module.training for module in modules)


def _modules(state: Mapping[str, object]) -> Iterator[torch.nn.Module]:
    for value in state.values():
        if isinstance(value, torch.nn.Module):
            yield value
            # Under a wrapper (DistributedDataParallel) either may be switched.
            wrapped = getattr(value, "module", None)
            if isinstance(wrapped, torch.nn.Module):
                yield wrapped
