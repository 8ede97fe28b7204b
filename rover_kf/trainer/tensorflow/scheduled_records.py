# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Records that the chief of a TFJob with parameter servers hands to whichever worker is free.

The chief leases them from the ledger of its own sidecar. A batch counts when its function has ended
on a worker: TensorFlow gives the function of a worker that is lost to another one, so none is lost,
and what the lost worker had begun may be trained on twice. Who is slow comes for fewer batches.
"""

from __future__ import annotations

import importlib
import os
import secrets
import threading
from collections.abc import Callable
from typing import Any

from rover_kf import errors
from rover_kf.api.data import DataProgress, SlotSpan
from rover_kf.data_sharding import data_position
from rover_kf.data_sharding.consumed_set import ConsumedSet
from rover_kf.data_sharding.worker_view import LeaseTracker, WorkerIdentity
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.data.lease_client import LeaseClient, LocalLeases, RemoteLeases
from rover_kf.trainer.data.lease_prefetcher import LeasePrefetcher
from rover_kf.trainer.data.numbered_records import NumberedRecords
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.sidecar_client import SidecarClient
from rover_kf.trainer.tensorflow import tf_config

_IDLE_SECONDS = 0.02
"""Between two looks for records while the last ones of an epoch are with workers."""


class ScheduledRecords:
    """Of one data set, in the chief's program; give it to the checkpointer.

    Args:
        coordinator: a ``ClusterCoordinator``.
        samples: records that the data set has.
        batch: of them are handed out at once.
        epochs: that are trained.
        name: tells a job's data sets apart.
        seed: of the order.
        shuffle: False: in their own order.
        fingerprint: of the contents, any text: a checkpoint of another one is refused.
        ahead: batches at most that are handed out and not done; two a worker if not given.
        settings: of the process; read from the environment if not given.

    Raises:
        InputError: there is nothing to train on, a number is out of range, or TF_CONFIG does not
            say how many workers there are and ``ahead`` is not given.
    """

    def __init__(
        self,
        coordinator: Any,
        samples: int,
        *,
        batch: int,
        epochs: int = 1,
        name: str = "train",
        seed: int = 0,
        shuffle: bool = True,
        fingerprint: str = "",
        ahead: int | None = None,
        settings: TrainerSettings | None = None,
    ) -> None:
        if ahead is not None and ahead < 1:
            raise errors.InputError(f"{ahead} batches ahead; 1 or more are needed")
        self._records = NumberedRecords.create(
            samples,
            batch=batch,
            epochs=epochs,
            name=name,
            seed=seed,
            shuffle=shuffle,
            fingerprint=fingerprint,
        )
        self.plan, self._coordinator = self._records.plan, coordinator
        self._ahead = ahead or 2 * _workers()
        self._settings = settings or trainer_settings.read()
        self._functions: dict[Callable[[Any], object], Any] = {}
        self._leases: LeasePrefetcher | None = None
        self._changed = threading.Condition()
        self._consumed = ConsumedSet()
        self._in_flight = 0
        self._failed: BaseException | None = None

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next batch is of, from 0 on."""
        return self._consumed.epoch

    @property
    def batches(self) -> int:
        """Of an epoch."""
        return self._records.batches

    def schedule(self, function: Callable[[Any], object]) -> int:
        """Hand the next batch to a worker; waits while enough are handed out.

        Args:
            function: what the worker does, in TensorFlow's operations; it is given the numbers of
                the batch's records, a vector of int64, and what it returns is dropped. The same
                object each time: each one is traced.

        Returns:
            Records of the batch; 0 if all epochs are done.

        Raises:
            RoverError: no records can be leased.
            Exception: what a function that was handed out before has failed with.
        """
        span = self._next()
        if span is None:
            return 0
        tensorflow: Any = importlib.import_module("tensorflow")
        numbers = tensorflow.constant(self._records.record_numbers(span, self._consumed.epoch))
        result = self._coordinator.schedule(self._trace(function), args=(numbers,))
        with self._changed:
            self._in_flight += 1
        threading.Thread(target=self._watch_result, args=(span, result), daemon=True).start()
        return span.size

    def settle(self) -> None:
        """Wait until all that was handed out is done, and counted.

        Raises:
            Exception: what one of the functions has failed with.
        """
        self._coordinator.join()
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight)
        self._raise_failed()

    def close(self) -> None:
        """Lease no more; safe to call twice."""
        leases, self._leases = self._leases, None
        if leases is not None:
            leases.close()

    # -- the checkpoint ---------------------------------------------------------------------------

    def to_text(self) -> str:
        """The place in the data, for a checkpoint: what is done of which data set."""
        return data_position.to_text(self.plan, self._progress())

    def load(self, text: str) -> None:
        """Go on with what a checkpoint's model was not trained on.

        Args:
            text: as ``to_text`` gave it.

        Raises:
            CheckpointError: it is of other data, or of a newer version.
        """
        progress = data_position.from_text(self.plan, text)
        self.close()
        with self._changed:
            self._consumed = ConsumedSet(progress)

    def _progress(self) -> DataProgress:
        with self._changed:
            return self._consumed.progress()

    # -- handing out ------------------------------------------------------------------------------

    def _next(self) -> SlotSpan | None:
        while self._consumed.epoch < self.plan.epochs:
            with self._changed:
                self._changed.wait_for(lambda: self._failed or self._in_flight < self._ahead)
            self._raise_failed()
            leases = self._open_leases()
            span = leases.claim(self._records.batch)
            if span is not None:
                return span
            over = leases.finished  # its lock first: its thread asks for the progress with it
            with self._changed:
                over = over and not self._in_flight
                if over:
                    self._consumed.next_epoch()
                else:
                    self._changed.wait(_IDLE_SECONDS)
            if over:
                leases.next_epoch()
        return None

    def _open_leases(self) -> LeasePrefetcher:
        if self._leases is None:
            given = self._settings
            place = WorkerIdentity(given.round, given.rank, given.world_size, secrets.token_hex(4))
            least = self._records.batch
            holder = LeaseTracker(
                self.plan, place, epoch=self._consumed.epoch, shared=False, batch_slots=least
            )
            desk: LeaseClient = (
                RemoteLeases(SidecarClient(given.shared_dir)) if given.shared_dir else LocalLeases()
            )
            self._leases = LeasePrefetcher(holder, desk, self._progress, dict, 2 * self.plan.shard)
        return self._leases

    def _trace(self, function: Callable[[Any], object]) -> Any:
        """It returns nothing: what is fetched from a worker may be lost with it."""
        if function not in self._functions:
            tensorflow: Any = importlib.import_module("tensorflow")

            def of_numbers(numbers: Any) -> None:
                function(numbers)

            signature = [tensorflow.TensorSpec([None], tensorflow.int64)]
            made = tensorflow.function(of_numbers, input_signature=signature)
            self._functions[function] = made
        return self._functions[function]

    def _watch_result(self, span: SlotSpan, result: Any) -> None:
        """A thread of a batch's own: TensorFlow tells of an end only to who waits for it."""
        failed: BaseException | None = None
        try:
            result.get()
        except Exception as error:  # noqa: BLE001 - the chief's loop must hear of it, not wait
            failed = error
        if failed is None:
            with self._changed:
                self._consumed.accept_batches([[span]])
            leases = self._leases
            if leases is not None:
                leases.mark_used([span])
        with self._changed:
            self._in_flight -= 1
            self._failed = self._failed or failed
            self._changed.notify_all()

    def _raise_failed(self) -> None:
        if self._failed is not None:
            self._coordinator.join()  # raises what was first, and not what that has cancelled
            raise self._failed


def _workers() -> int:
    told = tf_config.read(os.environ, 1)
    if told is None:
        raise errors.InputError(
            f"{tf_config.VARIABLE} is not set, so it is not known how many workers there are; give "
            "ahead, two a worker"
        )
    return max(told.workers, 1)
