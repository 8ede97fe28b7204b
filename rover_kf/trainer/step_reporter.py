# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A thread that reports steps and seals to the sidecar; training never waits for it.

Undelivered samples are kept up to a bound, then the oldest are dropped and counted. Seals are safe
anyhow: the sidecar finds them in the arena.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import SlotSealed
from rover_kf.api.samples import DataPosition, StepReport, StepSample
from rover_kf.api.status import Ack
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.system.steady_clock import MonotonicWallClock
from rover_kf.trainer.resource_usage import ResourceMeter
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.sidecar_client import SidecarClient

_MOST = 16


@runtime_checkable
class HasPosition(Protocol):
    """An entry of a state that knows its place in a data set."""

    def data_place(self, name: str) -> DataPosition:
        """Return the position now; from any thread. The state has it under ``name``."""


@runtime_checkable
class HasWaitTime(Protocol):
    """An entry of a state that the training loop waits for."""

    def take_waited(self) -> float:
        """Seconds that the loop has waited for its data since it was asked last."""


class LoaderProgress:
    """The positions and wait times of one process's loaders; ledgers report leased data."""

    def __init__(self) -> None:
        self._positioned: tuple[tuple[str, HasPosition], ...] = ()
        self._waited_for: tuple[HasWaitTime, ...] = ()

    def watch_state(self, state: Mapping[str, object]) -> None:
        """Follow the loaders of this state."""
        values = (value for value in state.values() if not isinstance(value, type))
        self._waited_for = tuple(value for value in values if isinstance(value, HasWaitTime))
        found = [
            (name, value)
            for name, value in state.items()
            if isinstance(value, HasPosition) and not isinstance(value, type)
        ]
        self._positioned = tuple(found[:_MOST])

    def positions(self) -> tuple[DataPosition, ...]:
        """All of them; from any thread."""
        return tuple(value.data_place(name) for name, value in self._positioned)

    def take_waited(self) -> float:
        """Seconds that the loop has waited for data since it was asked last."""
        return sum(value.take_waited() for value in self._waited_for)


_log = logging.getLogger("rover_kf")

_EVERY_SECONDS = 0.25
_TIMEOUT_SECONDS = 5.0
_MOST_SAMPLES = 10_000
_MOST_A_REPORT = 1_000
_PULSE_SECONDS = 5.0
"""Between two reports that say nothing new but that the process lives."""


class StepReporter:
    """A thread that reports one training process's steps and seals to the sidecar.

    Each report has the ``phase`` and the loaders' ``positions``; a new phase is reported at once.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        sidecar: SidecarClient,
        phase: Callable[[], str] = str,
        positions: Callable[[], tuple[DataPosition, ...]] = tuple,
    ) -> None:
        self._settings, self._sidecar = settings, sidecar
        self._phase, self._positions = phase, positions
        self._reported_phase, self._reported_at = "", 0.0
        self._clock = MonotonicWallClock()
        self._usage = ResourceMeter(settings.launcher, reports_container=settings.local_rank == 0)
        self._samples: collections.deque[StepSample] = collections.deque(maxlen=_MOST_SAMPLES)
        self._seals: collections.deque[SlotSealed] = collections.deque(maxlen=_MOST_SAMPLES)
        self._total_steps: int | None = None
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # seals come from the copy's thread
        self._warned = False
        self.dropped = 0
        """Samples that were given up for new ones."""

    def report_step(self, sample: StepSample, total_steps: int | None) -> None:
        """Queue a step's figures; return at once."""
        if len(self._samples) == _MOST_SAMPLES:
            self.dropped += 1
        self._samples.append(sample)
        self._total_steps = total_steps
        self._start()

    def report_seal(self, seal: Seal, copy_seconds: float) -> None:
        """Queue the news of a seal; return at once."""
        settings = self._settings
        message = SlotSealed(
            local_rank=settings.local_rank,
            rank=settings.rank,
            world_size=settings.world_size,
            round=seal.state.round,
            state=seal.state,
            slot=seal.slot,
            snapshot_bytes=seal.length,
            replicated=seal.replicated,
            pieces=seal.pieces,
            copy_seconds=copy_seconds,
        )
        self._seals.append(message)
        self._start()
        self._wake.set()

    def watch(self) -> None:
        """Begin to report the phase before there is a step."""
        self._start()

    def close(self, timeout: float = 5.0) -> None:
        """Deliver what is left, as far as that goes in ``timeout`` seconds."""
        self._ended.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
            self._thread = None
        if self.dropped:
            _log.warning("rover-kf: %d step samples were dropped unreported", self.dropped)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._ended.is_set():
                # A daemon: an interpreter that ends must not wait for a sidecar.
                self._thread = threading.Thread(target=self._run, name="rover-report", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wake.wait(_EVERY_SECONDS)
            self._wake.clear()
            self._deliver()
        self._deliver()

    def _deliver(self) -> None:
        try:
            while self._seals:
                self._sidecar.request(
                    names.PATH_SEALED, self._seals[0], Ack, timeout=_TIMEOUT_SECONDS
                )
                self._seals.popleft()
            while self._samples or self._is_pulse_due():
                self._report([self._samples.popleft() for _ in range(self._batch())])
        except errors.RoverError as error:
            # Once: the next tick tries again, and the log is the user's.
            (_log.debug if self._warned else _log.warning)("rover-kf: not reported: %s", error)
            self._warned = True

    def _is_pulse_due(self) -> bool:
        phase = self._phase()
        late = time.monotonic() - self._reported_at >= _PULSE_SECONDS
        return bool(phase) and (phase != self._reported_phase or late)

    def _batch(self) -> int:
        return min(len(self._samples), _MOST_A_REPORT)

    def _report(self, samples: list[StepSample]) -> None:
        settings = self._settings
        usage = self._usage.measure()
        message = StepReport(
            rank=settings.rank,
            world_size=settings.world_size,
            round=settings.round,
            samples=tuple(samples),
            sent_at=self._clock.now(),
            total_steps=self._total_steps,
            phase=self._phase(),
            memory=usage.memory,
            file_memory=usage.files,
            cores=usage.cores,
            data=self._positions(),
        )
        try:
            self._sidecar.request(names.PATH_SAMPLES, message, Ack, timeout=_TIMEOUT_SECONDS)
        except errors.RoverError:
            self._samples.extendleft(reversed(samples))
            raise
        self._reported_phase, self._reported_at = message.phase, time.monotonic()
