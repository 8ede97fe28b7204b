# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Records of a TFJob whose workers come and go, leased from one ledger of the chief.

Workers iterate. The chief opens the ledger at its checkpoint's position, requests the position
before a save, and sees the end of all epochs. No record is lost, some may count twice
(docs/tfjob.md).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

from rover_kf import errors
from rover_kf.api.data import DataProgress
from rover_kf.api.samples import StepSample
from rover_kf.system.steady_clock import MonotonicWallClock
from rover_kf.trainer.data.lease_client import RemoteLeases
from rover_kf.trainer.data.lease_prefetcher import LeasePrefetcher
from rover_kf.trainer.drain import Drain
from rover_kf.trainer.sidecar_client import SidecarClient
from rover_kf.trainer.step_reporter import StepReporter
from rover_kf.trainer.tensorflow import tf_config
from rover_kf.trainer.tensorflow.leased_records import LeasedRecords

_ROUND = 0
"""Workers are worlds of their own, whose rounds say nothing to others."""
_IDLE_SECONDS = 0.05
_FLUSH_SECONDS = 10.0


class SharedRecords(LeasedRecords):
    """Records of one data set; the same in the chief and in all workers.

    Raises:
        InputError: there is nothing to train on, a number is out of range, or the process is none
            of a TFJob's under rover-kf.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        config = tf_config.read(os.environ, 1)
        home = self._settings.shared_dir
        if home is None or config is None or config.task == "ps":
            raise errors.InputError(
                "SharedRecords are lent to the chief and the workers of a TFJob under rover-kf; "
                "this process is none"
            )
        chief = config.task != "worker"
        self._rank = 0 if chief else config.index + 1
        self._client = RemoteLeases(SidecarClient(home))
        self._drain = Drain(home, self._settings.resting, self._settings.local_rank)
        self._reporter = None if chief else StepReporter(self._settings, SidecarClient(home))
        self._clock = MonotonicWallClock()
        self._saved = DataProgress()
        self._epoch = self._step = 0

    # -- a worker ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Batches until all epochs are over, each the numbers of its records (int64).

        A batch counts when the next one is asked for.

        Raises:
            SystemExit: the pod is about to end: what was done is told, and the process leaves.
            RoverError: nothing can be leased.
        """
        leases = self._lease(2 * self.plan.shard)
        while self._epoch < self.epochs:
            span = leases.claim(self.batch)
            if span is None:
                self._wait(leases)
                continue
            begun = time.monotonic()
            yield self._record_numbers(span, self._epoch)
            leases.mark_used([span])
            self._report_step(span.size, time.monotonic() - begun)
            if self._drain.is_due(self._step):
                self._leave(leases)
        leases.flush(_FLUSH_SECONDS)
        self.close()

    def _wait(self, leases: LeasePrefetcher) -> None:
        """The epoch is over, or what is left of it is with others."""
        if leases.finished:
            self._epoch += 1
            leases.next_epoch()
            return
        if self._drain.is_due(1 << 62):
            self._leave(leases)
        self._epoch = leases.follow_ledger()
        time.sleep(_IDLE_SECONDS)

    def _report_step(self, samples: int, seconds: float) -> None:
        """To this pod's sidecar: the pace by which it ends when it is told to."""
        self._step += 1
        now = self._clock.now()
        sample = StepSample(step=self._step, ended_at=now, seconds=seconds, samples=samples)
        if self._reporter is not None:
            self._reporter.report_step(sample, None)

    def _leave(self, leases: LeasePrefetcher) -> None:
        leases.flush(_FLUSH_SECONDS)
        self.close()
        self._drain.leave()

    # -- the chief --------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether all epochs are over; the chief's first look opens the ledger for the workers.

        So look only when the model is what the checkpoint says.

        Raises:
            RoverError: the ledger cannot be opened.
        """
        if self._epoch < self.epochs:
            leases = self._lease(0)
            leases.check()
            if leases.finished:
                self._epoch += 1
                leases.next_epoch()
        return self._epoch >= self.epochs

    def settle(self) -> None:
        """Ask the ledger what is done; before the model is read, which then has it all."""
        if self._epoch >= self.epochs:
            self._saved = DataProgress(self.epochs)
        elif self._leases is not None:
            # Else what was known before is done all the same; the rest comes again.
            with contextlib.suppress(errors.RoverError):
                self._saved = self._client.progress(self.plan.name, _ROUND)

    def close(self) -> None:
        """Lease no more; safe to call twice."""
        super().close()
        if self._reporter is not None:
            self._reporter.close()

    def _progress(self) -> DataProgress:
        return self._saved

    def _resume(self, progress: DataProgress) -> None:
        self._saved, self._epoch = progress, progress.epoch

    def _lease(self, ahead: int) -> LeasePrefetcher:
        rank = (_ROUND, self._rank, self._rank + 1)
        return self._open_leases(rank, self._client, self._epoch, shared=True, ahead=ahead)
