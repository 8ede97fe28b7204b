# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Records of a table that are leased by their numbers, in an order by seed and epoch."""

from __future__ import annotations

import dataclasses
import importlib
import secrets
from typing import Any

from rover_kf import errors
from rover_kf.api.data import DataPlan, DataProgress, Partition, SlotSpan
from rover_kf.data_sharding import data_position
from rover_kf.data_sharding.permutation import Permutation
from rover_kf.data_sharding.worker_view import LeaseTracker, WorkerIdentity
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.data.lease_client import LeaseClient
from rover_kf.trainer.data.lease_prefetcher import LeasePrefetcher
from rover_kf.trainer.settings import TrainerSettings

_SHARD = 1024
"""Records of a lease, about."""


@dataclasses.dataclass(eq=False)
class LeasedRecords:
    """The records of one data set in a process that leases them.

    Raises:
        InputError: there is nothing to train on, or a number is out of range.
    """

    samples: int
    """Records that the data set has."""
    _: dataclasses.KW_ONLY
    batch: int
    """Records that are leased at once."""
    epochs: int = 1
    """Epochs that are trained."""
    name: str = "train"
    """Name of the data set, unique in the job."""
    seed: int = 0
    """Of the order."""
    shuffle: bool = True
    """False: in their own order."""
    fingerprint: str = ""
    """Of the contents, any text: a checkpoint of another one is refused."""
    settings: TrainerSettings | None = None
    """Of the process; read from the environment if not given."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise errors.InputError(f"batches of {self.batch} records; 1 or more is needed")
        order = f"shuffled by seed {self.seed}" if self.shuffle else "as it is"
        shard = self.batch * max(1, _SHARD // self.batch)
        slots = (Partition("", 0, self.samples),)
        self.plan = DataPlan(self.name, slots, shard, self.epochs, self.fingerprint, order)
        self.plan.check()
        self._settings = self.settings or trainer_settings.read()
        self._leases: LeasePrefetcher | None = None

    @property
    def batches(self) -> int:
        """Batches of an epoch, where none is cut."""
        return -(-self.samples // self.batch)

    def to_text(self) -> str:
        """Return the position in the data, for a checkpoint."""
        return data_position.to_text(self.plan, self._progress())

    def load(self, text: str) -> None:
        """Resume with what a checkpoint's model was not trained on, by ``to_text``.

        Raises:
            CheckpointError: it is of other data, or of a newer version.
        """
        progress = data_position.from_text(self.plan, text)
        self.close()
        self._resume(progress)

    def close(self) -> None:
        """Lease no more; safe to call twice."""
        leases, self._leases = self._leases, None
        if leases is not None:
            leases.close()

    def _progress(self) -> DataProgress:
        raise NotImplementedError

    def _resume(self, progress: DataProgress) -> None:
        raise NotImplementedError

    def _open_leases(
        self,
        rank: tuple[int, int, int],
        client: LeaseClient,
        epoch: int,
        *,
        shared: bool,
        ahead: int,
    ) -> LeasePrefetcher:
        """Return the leases of a process with this round, rank and world size."""
        if self._leases is None:
            tracker = LeaseTracker(
                self.plan,
                WorkerIdentity(*rank, secrets.token_hex(4)),
                epoch=epoch,
                shared=shared,
                batch_slots=self.batch,
            )
            self._leases = LeasePrefetcher(tracker, client, self._progress, dict, ahead)
        return self._leases

    def _record_numbers(self, span: SlotSpan, epoch: int) -> Any:
        """Return the records' numbers at these slots, an int64 array."""
        numpy: Any = importlib.import_module("numpy")
        found = numpy.arange(span.begin, span.end, dtype=numpy.int64)
        if self.shuffle:
            found = Permutation(self.samples, self.seed, epoch).values_at(found)
        return found
