# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Records of a TFJob whose workers come and go: one ledger, in the chief's sidecar, lends to all.

A worker iterates; the chief opens the ledger with its checkpoint's place, asks for the place before
it saves the model, and sees when all epochs are over. So no record is lost, and some may count
twice (docs/tfjob.md has the bound).
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from typing import Any

from rover_kf import errors
from rover_kf.api.data import DataProgress
from rover_kf.api.samples import StepSample
from rover_kf.data_sharding import data_position
from rover_kf.data_sharding.worker_view import LeaseTracker, WorkerIdentity
from rover_kf.system.steady_clock import MonotonicWallClock
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.data.lease_client import RemoteLeases
from rover_kf.trainer.data.lease_prefetcher import LeasePrefetcher
from rover_kf.trainer.data.numbered_records import NumberedRecords
from rover_kf.trainer.drain import Drain
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.sidecar_client import SidecarClient
from rover_kf.trainer.step_reporter import StepReporter
from rover_kf.trainer.tensorflow import tf_config

_ROUND = 0
"""Workers are worlds of their own, whose rounds say nothing to others."""
_IDLE_SECONDS = 0.05
_FLUSH_SECONDS = 10.0


class SharedRecords:
    """Of one data set; the same in the chief and in all workers.

    Args:
        samples: records that the data set has.
        batch: of them are taken at once.
        epochs: that are trained.
        name: tells a job's data sets apart.
        seed: of the order.
        shuffle: False: in their own order.
        fingerprint: of the contents, any text: a checkpoint of another one is refused.
        settings: of the process; read from the environment if not given.

    Raises:
        InputError: there is nothing to train on, a number is out of range, or the process is none
            of a TFJob's under rover-kf.
    """

    def __init__(
        self,
        samples: int,
        *,
        batch: int,
        epochs: int = 1,
        name: str = "train",
        seed: int = 0,
        shuffle: bool = True,
        fingerprint: str = "",
        settings: TrainerSettings | None = None,
    ) -> None:
        self._records = NumberedRecords.create(
            samples,
            batch=batch,
            epochs=epochs,
            name=name,
            seed=seed,
            shuffle=shuffle,
            fingerprint=fingerprint,
        )
        self._settings = settings or trainer_settings.read()
        told = tf_config.read(os.environ, 1)
        if self._settings.shared_dir is None or told is None or told.task == "ps":
            raise errors.InputError(
                "SharedRecords are lent to the chief and the workers of a TFJob under rover-kf; "
                "this process is none"
            )
        home, self._chief = self._settings.shared_dir, told.task != "worker"
        self._rank = 0 if self._chief else told.index + 1
        self._client = RemoteLeases(SidecarClient(home))
        self._drain = Drain(home, self._settings.resting, self._settings.local_rank)
        self._reporter = None if self._chief else StepReporter(self._settings, SidecarClient(home))
        self._clock = MonotonicWallClock()
        self._leases: LeasePrefetcher | None = None
        self._progress = DataProgress()
        self._epoch = self._step = 0

    # -- a worker ---------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Batches until all epochs are over, each the numbers of its records (int64).

        A batch counts when the next one is asked for.

        Raises:
            SystemExit: the pod is about to end: what was done is told, and the process leaves.
            RoverError: nothing can be leased.
        """
        plan = self._records.plan
        leases = self._open_leases(2 * plan.shard)
        while self._epoch < plan.epochs:
            span = leases.claim(self._records.batch)
            if span is None:
                self._wait(leases)
                continue
            begun = time.monotonic()
            yield self._records.record_numbers(span, self._epoch)
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
        epochs = self._records.plan.epochs
        if self._epoch < epochs:
            leases = self._open_leases(0)
            leases.check()
            if leases.finished:
                self._epoch += 1
                leases.next_epoch()
        return self._epoch >= epochs

    def settle(self) -> None:
        """Ask the ledger what is done; before the model is read, which then has it all."""
        plan = self._records.plan
        if self._epoch >= plan.epochs:
            self._progress = DataProgress(plan.epochs)
            return
        if self._leases is None:
            return
        try:
            self._progress = self._client.progress(plan.name, _ROUND)
        except errors.RoverError:
            return  # what was known before is done all the same; the rest comes again

    def to_text(self) -> str:
        """The place in the data, for a checkpoint."""
        return data_position.to_text(self._records.plan, self._progress)

    def load(self, text: str) -> None:
        """Go on with what a checkpoint's model was not trained on.

        Args:
            text: as ``to_text`` gave it.

        Raises:
            CheckpointError: it is of other data, or of a newer version.
        """
        self._progress = data_position.from_text(self._records.plan, text)
        self._epoch = self._progress.epoch
        self.close()

    def close(self) -> None:
        """Lease no more; safe to call twice."""
        leases, self._leases = self._leases, None
        if leases is not None:
            leases.close()
        if self._reporter is not None:
            self._reporter.close()

    def _open_leases(self, ahead: int) -> LeasePrefetcher:
        if self._leases is None:
            plan, least = self._records.plan, self._records.batch
            place = WorkerIdentity(_ROUND, self._rank, self._rank + 1, secrets.token_hex(4))
            holder = LeaseTracker(plan, place, epoch=self._epoch, shared=True, batch_slots=least)
            self._leases = LeasePrefetcher(
                holder, self._client, lambda: self._progress, dict, ahead
            )
        return self._leases
