# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Records that a chief with parameter servers gives to whichever worker is free.

The chief leases them from its sidecar's ledger. A batch counts when its function has ended.
TensorFlow gives a lost worker's function to another one: no record is lost, and some may be trained
on twice.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from typing import Any

from rover_kf import errors
from rover_kf.api.data import DataProgress, SlotSpan
from rover_kf.data_sharding.consumed_set import ConsumedSet
from rover_kf.trainer.data.lease_client import LeaseClient, LocalLeases, RemoteLeases
from rover_kf.trainer.data.lease_prefetcher import LeasePrefetcher
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.sidecar_client import SidecarClient
from rover_kf.trainer.tensorflow import tf_config
from rover_kf.trainer.tensorflow.leased_records import LeasedRecords

_IDLE_SECONDS = 0.02
"""Between two looks for records while the last ones of an epoch are with workers."""


class ScheduledRecords(LeasedRecords):
    """Records of one data set, in the chief's program; give it to the checkpointer.

    Args:
        coordinator: a ``ClusterCoordinator``.
        ahead: batches at most that are handed out and not done; two a worker if not given.
        samples: and all others: see LeasedRecords.

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
        super().__init__(
            samples,
            batch=batch,
            epochs=epochs,
            name=name,
            seed=seed,
            shuffle=shuffle,
            fingerprint=fingerprint,
            settings=settings,
        )
        self._coordinator, self._ahead = coordinator, ahead or 2 * _workers()
        self._functions: dict[Callable[[Any], object], Any] = {}
        self._changed = threading.Condition()
        self._consumed = ConsumedSet()
        self._in_flight = 0
        self._failed: BaseException | None = None

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next batch is of, from 0 on."""
        return self._consumed.epoch

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
        numbers = tensorflow.constant(self._record_numbers(span, self._consumed.epoch))
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

    def _progress(self) -> DataProgress:
        with self._changed:
            return self._consumed.progress()

    def _resume(self, progress: DataProgress) -> None:
        with self._changed:
            self._consumed = ConsumedSet(progress)

    # -- handing out ------------------------------------------------------------------------------

    def _next(self) -> SlotSpan | None:
        while self._consumed.epoch < self.plan.epochs:
            with self._changed:
                self._changed.wait_for(lambda: self._failed or self._in_flight < self._ahead)
            self._raise_failed()
            leases = self._lease()
            span = leases.claim(self.batch)
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

    def _lease(self) -> LeasePrefetcher:
        given = self._settings
        client: LeaseClient = (
            RemoteLeases(SidecarClient(given.shared_dir)) if given.shared_dir else LocalLeases()
        )
        rank, ahead = (given.round, given.rank, given.world_size), 2 * self.plan.shard
        return self._open_leases(rank, client, self.epoch, shared=False, ahead=ahead)

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
