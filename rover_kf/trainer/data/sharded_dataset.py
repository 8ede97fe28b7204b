# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Data whose slots are leased while training runs: who is fast reads more, and each counts once.

::

    data = rover_kf.ShardedDataset(dataset, epochs=3)
    loader = data.loader(batch_size=32, num_workers=4)
    state = {"model": model, "optimizer": optimizer, "data": data}
    step = checkpointer.restore(state)
    while data.epoch < 3:
        for inputs, labels in loader:
            (loss(model(inputs), labels) * loader.weight).backward()
            ...
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, cast

import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from rover_kf import errors
from rover_kf.api.data import DataPlan, DataProgress, Partition, SlotSpan
from rover_kf.data_sharding import data_position
from rover_kf.data_sharding.consumed_set import ConsumedSet
from rover_kf.data_sharding.ledger_source import LedgerSource, ResumableSource
from rover_kf.data_sharding.permutation import Permutation
from rover_kf.data_sharding.worker_view import LeaseTracker, WorkerIdentity
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.data.lease_client import LeaseClient, LocalLeases, RemoteLeases
from rover_kf.trainer.data.lease_prefetcher import LeasePrefetcher
from rover_kf.trainer.data.sharded_loader import ShardedLoader
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.sidecar_client import SidecarClient


class IndexSource:
    """A map-style data set as a source; its samples are the same in every process.

    An empty ``fingerprint`` stands for the data set's own.

    Raises:
        InputError: the data set has no length.
    """

    def __init__(
        self, dataset: Any, *, seed: int = 0, shuffle: bool = True, fingerprint: str = ""
    ) -> None:
        if not isinstance(dataset, Sized):
            raise errors.InputError(
                f"{type(dataset).__name__} has no length; leases need a data set that has one, or "
                "a Source (rover_kf.data_sharding.ledger_source)"
            )
        self._dataset: Any = dataset
        self._seed, self._shuffle = seed, shuffle
        self.fingerprint = fingerprint or str(getattr(dataset, "fingerprint", ""))
        self.order = f"shuffled by seed {seed}" if shuffle else "as it is"

    def partitions(self) -> tuple[Partition, ...]:
        """See Source."""
        return (Partition("", 0, len(self._dataset)),)

    def ends(self) -> Mapping[str, int]:
        """See Source."""
        return {}

    def read(self, span: SlotSpan, epoch: int) -> Iterable[Any]:
        """See Source."""
        places: Iterable[int] = range(span.begin, span.end)
        if self._shuffle:
            order = Permutation(len(self._dataset), self._seed, epoch)
            places = [order.value_at(place) for place in places]
        together = getattr(self._dataset, "__getitems__", None)
        if together is not None:
            found: Iterable[Any] = together(list(places))
            return found
        return [self._dataset[place] for place in places]


class RangeSource:
    """A function that reads a range of samples, in their own order, as a source.

    ``read`` returns as many samples as its range has numbers.

    Raises:
        InputError: fewer samples than none.
    """

    def __init__(
        self, read: Callable[[range], Iterable[Any]], samples: int, *, fingerprint: str = ""
    ) -> None:
        if samples < 0:
            raise errors.InputError(f"{samples} samples: there cannot be fewer than none")
        self._read, self._samples = read, samples
        self.fingerprint, self.order = fingerprint, "as it is"

    def partitions(self) -> tuple[Partition, ...]:
        """See Source."""
        return (Partition("", 0, self._samples),)

    def ends(self) -> Mapping[str, int]:
        """See Source."""
        return {}

    def read(self, span: SlotSpan, epoch: int) -> Iterable[Any]:  # noqa: ARG002 - the same in all
        """See Source."""
        return self._read(range(span.begin, span.end))


_IDLE_SECONDS = 5.0
"""Since no rank had anything; ranks tell each other again and again, unless one of them hangs."""


class ShardedDataset(IterableDataset[Any]):
    """Put it into the state that is checkpointed, and iterate over its loader.

    Args:
        data: a map-style data set; a Source; or a function that reads a range of samples.
        samples: that there are, of a function.
        name: tells a job's data sets apart; the same on all ranks.
        shard_size: slots of a lease.
        epochs: that are trained.
        seed: of the order of a map-style data set.
        shuffle: False: its own order.
        fingerprint: of the contents (the data set's own if not given): others are refused.
        shared: the model is one that all processes write to without waiting for each other (a
            parameter server): each sample counts at least once, and rank 0's state has the place.
            Else ranks of a process group step together, and each sample counts exactly once.
        settings: of the process; read from the environment if not given.

    Raises:
        InputError: there is nothing to train on, or a number is out of range.
    """

    def __init__(
        self,
        data: Any,
        *,
        samples: int | None = None,
        name: str = "train",
        shard_size: int = 1024,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        fingerprint: str = "",
        shared: bool = False,
        settings: TrainerSettings | None = None,
    ) -> None:
        super().__init__()
        self.source = _source(data, samples, seed, fingerprint, shuffle=shuffle)
        self.name, self.shard_size, self.epochs = name, shard_size, epochs
        self.shared = shared
        self._plan: DataPlan | None = None
        self._settings = settings or trainer_settings.read()
        self.union = ConsumedSet()
        """What is used; of a shared ledger only by this process."""
        self.idle_at = float("-inf")
        """When no rank had anything to read; a steady clock's seconds."""
        self._leases: LeasePrefetcher | None = None
        self._desk: LeaseClient | None = None
        if not isinstance(self.source, ResumableSource):
            _ = self.plan  # wrong input is told at once

    @property
    def plan(self) -> DataPlan:
        """What a ledger needs to know of the data; of a stream it is asked after the restore.

        Raises:
            InputError: there is nothing to train on, or a number is out of range.
        """
        if self._plan is None:
            if isinstance(self.source, ResumableSource):
                self.union = ConsumedSet(self.source.resume(self.union.progress()))
            plan = DataPlan(
                self.name,
                self.source.partitions(),
                self.shard_size,
                self.epochs,
                self.source.fingerprint,
                self.source.order,
            )
            plan.check()
            self._plan = plan
        return self._plan

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next iteration goes on with."""
        return self.union.epoch

    @property
    def done(self) -> int:
        """Slots of the epoch that all ranks' steps have used; of a shared ledger this one's."""
        return self.union.used

    @property
    def world_size(self) -> int:
        """Processes that lease from the same ledger."""
        return self._settings.world_size

    def loader(self, batch_size: int, **options: Any) -> ShardedLoader:
        """A DataLoader over it.

        Args:
            batch_size: slots that this rank takes a step.
            options: of DataLoader, such as num_workers, collate_fn and prefetch_factor.

        Raises:
            InputError: the batch is empty, or an option does not go with leases.
        """
        return ShardedLoader(self, batch_size, **options)

    def __iter__(self) -> Iterator[Any]:
        """Samples one by one, read in this process."""
        if get_worker_info() is not None:
            raise errors.InputError(
                "a DataLoader's workers cannot tell which samples the loop was given; use "
                "data.loader(batch_size=…, num_workers=…) in place of DataLoader(data, …)"
            )
        return (sample for (sample,) in self.loader(1, collate_fn=list))

    def is_waiting(self) -> bool:
        """Whether no rank has had anything to read just now: what comes of a stream is used up."""
        return time.monotonic() - self.idle_at < _IDLE_SECONDS

    # -- the checkpoint ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What steps have used up to now, over all ranks: compact ranges."""
        if self._leases is not None:
            self.union.add_poison(self._leases.poison)
        progress = self.union.progress()
        if self.shared and self._desk is not None and self._settings.rank == 0:
            progress = self._desk.progress(self.name, self._settings.round)
            self.union = ConsumedSet.from_progress([progress, self.union.progress()])
        return data_position.dump(self._identity(), progress)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint's steps have not used.

        Raises:
            CheckpointError: it is of other data, or of a newer version.
        """
        progress = data_position.load(self._identity(), state)
        self.close()
        if isinstance(self.source, ResumableSource):
            self._plan = None
        self.union = ConsumedSet(progress)

    def _identity(self) -> dict[str, Any]:
        stream = isinstance(self.source, ResumableSource)
        partitions = () if stream else self.plan.partitions
        source = self.source
        return data_position.identity(self.name, source.fingerprint, source.order, partitions)

    # -- leases -----------------------------------------------------------------------------------

    def leases(self, ahead: int, least: int) -> LeasePrefetcher:
        """Return this process's leases, which the first call opens.

        ``ahead`` slots are leased at any time; ``least`` of them are used at once.

        Raises:
            InputError: processes that cannot tell each other what they use.
        """
        if self._leases is not None:
            return self._leases
        given = self._settings
        if given.world_size > 1 and not (self.shared or dist.is_initialized()):
            raise errors.InputError(
                f"{given.world_size} processes lease data set {self.name!r} and have no "
                "process group to tell each other what they use; call init_process_group first, or "
                "give shared=True if the model is one that all of them write to (at least once)"
            )
        place = WorkerIdentity(given.round, given.rank, given.world_size, secrets.token_hex(4))
        plan = self.plan
        holder = LeaseTracker(plan, place, epoch=self.epoch, shared=self.shared, batch_slots=least)
        self._desk = (
            RemoteLeases(SidecarClient(given.shared_dir)) if given.shared_dir else LocalLeases()
        )
        self._leases = LeasePrefetcher(holder, self._desk, self._progress, self.source.ends, ahead)
        return self._leases

    def _progress(self) -> DataProgress:
        return self.union.progress()

    def close(self) -> None:
        """Lease no more; what was lent is handed out again when the round ends."""
        leases, self._leases = self._leases, None
        if leases is not None:
            leases.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leases stay with the process that has them."""
        return {**self.__dict__, "_leases": None, "_desk": None}


def _source(
    data: Any, samples: int | None, seed: int, fingerprint: str, *, shuffle: bool
) -> LedgerSource:
    if isinstance(data, LedgerSource):
        return data
    if hasattr(data, "__getitem__"):
        return IndexSource(data, seed=seed, shuffle=shuffle, fingerprint=fingerprint)
    if callable(data) and samples is not None:
        read = cast("Callable[[range], Iterable[Any]]", data)
        return RangeSource(read, samples, fingerprint=fingerprint)
    raise errors.InputError(
        f"{type(data).__name__} can be leased neither by index nor by range: give a map-style data "
        "set, a Source (rover_kf.data_sharding.ledger_source), or a function of a range together "
        "with samples"
    )
