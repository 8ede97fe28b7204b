# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A data loader that resumes at its checkpoint's position, in a world of any size.

Seed and epoch alone determine the samples of a step, not the number of ranks or past failures. The
position is a part of the checkpoint, so each sample is in one of the surviving steps.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset

from rover_kf import errors
from rover_kf.api.samples import DataPosition
from rover_kf.data_sharding.batches import BatchPart
from rover_kf.trainer.data.epoch_plan import RankBatch, plan_epochs, rank_batches
from rover_kf.trainer.data.worker_reads import WorkerSeeds
from rover_kf.trainer.timers import DataWaitTimer


class ElasticDataLoader(DataLoader[Any]):
    """In the place of a DataLoader with a DistributedSampler.

    Give it to the checkpointer with the rest of the state, and iterate: after a restore the first
    iteration is the rest of the epoch. After the epoch's last step the rest has no batch, and the
    code after the loop runs once. ``weight`` keeps the gradient exact where ranks take unequal
    parts, ``accumulates`` says that more of the same step follows::

        loader = ElasticDataLoader(dataset, batch_size=256)
        state = {"model": model, "optimizer": optimizer, "loader": loader}
        step = checkpointer.restore(state)
        while loader.epoch < epochs:
            for inputs, labels in loader:
                (loss(model(inputs), labels) * loader.weight).backward()
                ...

    Args:
        dataset: map-style; the same samples in every process and every time.
        batch_size: samples a step over all ranks together, which stays when their number changes.
        micro_batch_size: samples that a rank computes at once; 0: its whole part of the step. Then
            a smaller world accumulates gradients over more of them.
        seed: of the order.
        shuffle: False: the data set's own order.
        drop_last: leave out samples of an epoch that do not fill a batch.
        lanes: blocks that a batch's samples come from, of a data set that has ``blocks`` (files):
            about as many as ranks, so that each reads blocks of its own. 0: any sample may follow
            any other, wherever it lies.
        fingerprint: of the data set's contents: a checkpoint of others is refused. The data set's
            own attribute of that name if not given.
        rank: of this process and ...
        world_size: ... their number; from the environment if not given.
        options: of DataLoader, such as num_workers and collate_fn.

    Raises:
        InputError: the data set has no length, or the numbers make no batches.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        micro_batch_size: int = 0,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        lanes: int = 8,
        fingerprint: str = "",
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ) -> None:
        if options.get("in_order") is False:
            raise errors.InputError("in_order=False: batches must come in order to be counted")
        self._plan = plan_epochs(
            dataset,
            batch=batch_size,
            micro_batch_size=micro_batch_size,
            drop_last=drop_last,
            lanes=lanes,
            workers=options.get("num_workers", 0),
            seed=seed,
            shuffle=shuffle,
            fingerprint=fingerprint,
            rank=rank,
            world_size=world_size,
        )
        self._position, self._epoch_batches = self._plan.position, self._plan.batches
        self._part: BatchPart | None = None
        self._ahead: collections.deque[RankBatch] = collections.deque()
        """Parts that were asked for and have not come yet."""
        self._taken = self._fetched = 0
        """Samples of the epoch that the loop was given here, and that were asked for."""
        self._end_restored = False
        """Whether the restored epoch has no batch left, and its loop has not ended here."""
        self._iteration, self._rank_batch_sampler = object(), _RankBatchSampler(self)
        self._wait_timer, self._seeds = DataWaitTimer(), WorkerSeeds(options)
        super().__init__(dataset, batch_sampler=self._rank_batch_sampler, **options)

    @property
    def weight(self) -> float:
        """To multiply the mean loss of the last batch by, before ``backward``."""
        return 1.0 if self._part is None else self._part.weight

    @property
    def accumulates(self) -> bool:
        """Whether more of the last batch's step follows: no optimizer step yet."""
        return self._part is not None and not self._part.last

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next iteration goes on with."""
        return self._position.epoch

    @property
    def done(self) -> int:
        """Samples of the epoch that steps have used, over all ranks."""
        return self._position.done

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # DataLoader's has a narrower type
        """The rest of the epoch, then the next one is the next; this rank's part of it."""
        if not self._end_restored:
            # A loop that took the last batch here has left its epoch, and this is the next one's.
            self._next_epoch_at_end()
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        self._iteration = mine = object()
        self._end_restored = False
        self._ahead.clear()
        self._fetched = self._taken
        course, ahead = self._position, self._ahead
        try:
            if not self._plan.remaining().steps:
                return
            self._seeds.begin(self, course.epoch, course.done)
            for batch in self._wait_timer.measure(self._batches()):
                self._part, done, indices = ahead.popleft()
                if self._part.last:
                    # Before the loop's body runs: a checkpoint at its end has this step.
                    course.done = done
                self._taken += len(indices)
                yield batch
        finally:  # also where the loop takes as many as there are and never asks for the end
            if self._iteration is mine:
                self._next_epoch_at_end()

    def _batches(self) -> Iterator[Any]:
        self._rank_batch_sampler.is_called_by_loader = True
        try:
            return super().__iter__()
        finally:
            self._rank_batch_sampler.is_called_by_loader = False

    def _next_epoch_at_end(self) -> None:
        if not self._plan.remaining().steps:
            self._position.next_epoch()
            self._taken = self._fetched = 0

    def __len__(self) -> int:
        """Batches that this rank has in a whole epoch."""
        whole = self._epoch_batches
        full, rest = whole.full, whole.steps - whole.full
        found = full * len(whole.parts_of(whole.batch))
        return found + len(whole.parts_of(whole.samples % whole.batch)) if rest else found

    def state_dict(self) -> dict[str, Any]:
        """The place after the last whole step; the same on all ranks."""
        return self._position.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a place; the next iteration begins there.

        At the end of an epoch that iteration has no batch, so the code after the loop runs once.

        Raises:
            CheckpointError: it is a place in another data set, or of a newer version.
        """
        # Earlier versions kept "costs" of each rank, too, on which no step's samples depend.
        self._position.load_state_dict(state)
        self._part, self._taken, self._fetched = None, 0, 0
        self._end_restored = not self._plan.remaining().steps

    def start_epoch(self) -> None:
        """Leave an epoch whose end was restored, for a trainer that counts epochs itself."""
        if self._end_restored:
            self._end_restored = False
            self._next_epoch_at_end()

    def data_place(self, name: str) -> DataPosition:
        """How far this rank is, for the coordinator's status; from any thread."""
        course, ahead = self._position, max(self._fetched - self._taken, 0)
        return DataPosition(name, course.epoch, course.samples, course.done, self._taken, ahead)

    def take_waited(self) -> float:
        """Seconds that the loop has waited for batches since it was asked last."""
        return self._wait_timer.pop_seconds()

    def ordered(self) -> Iterator[list[int]]:
        """Indices into the data set, a part after the other, from the place on."""
        for found in rank_batches(self._plan.remaining(), self._position.order()):
            self._ahead.append(found)
            self._fetched += len(found.indices)
            yield found.indices


class _RankBatchSampler:
    """The loader's batches, as DataLoader asks for them."""

    def __init__(self, loader: ElasticDataLoader) -> None:
        self._loader = loader
        self.is_called_by_loader = False
        """Whether it is that loader that asks, which counts what it gives."""

    @property
    def sampler(self) -> _RankBatchSampler:
        """The object that Lightning calls ``set_epoch`` of."""
        return self

    def set_epoch(self, epoch: int) -> None:  # noqa: ARG002 - the loader's own number stays
        """Begin an epoch that a trainer counts; the trainer runs the code after each epoch."""
        self._loader.start_epoch()

    def __iter__(self) -> Iterator[list[int]]:
        if not self.is_called_by_loader:
            raise errors.InputError(
                "another DataLoader was made of an ElasticDataLoader (accelerate's prepare does "
                "so), and what it gives is in no checkpoint; iterate the ElasticDataLoader itself, "
                "without prepare, and move its batches to the device in the loop"
            )
        return self._loader.ordered()

    def __len__(self) -> int:
        return len(self._loader)
