# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""For who keeps their own DataLoader: a sampler in the place of DistributedSampler.

It gives each rank its part of the same steps that ElasticDataLoader has, in a world of any size.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import Sampler

from rover_kf import errors
from rover_kf.api.samples import DataPosition
from rover_kf.trainer.data.epoch_plan import (
    EpochPlan,
    RankBatch,
    plan_epochs,
    rank_batches,
)


class ElasticSampler(Sampler[int]):
    """In the place of DistributedSampler; the size of a step stays when the world's changes.

    A sampler knows what was drawn, not what was trained on: say that by ``advance`` after each
    step, and give the sampler to the checkpointer::

        sampler = ElasticSampler(dataset, batch_size=256)
        loader = DataLoader(dataset, sampler.rank_batch_size, sampler=sampler, num_workers=4)
        step = checkpointer.restore({**state, "sampler": sampler})
        for epoch in range(sampler.epoch, epochs):
            for inputs, labels in loader:
                ...
                sampler.advance()
                checkpointer.step(step, {**state, "sampler": sampler})

    A state of an epoch's last step restores with no sample left of that epoch, so the code after
    the loop runs once. Save in the loop only, or call ``set_epoch(epoch + 1)`` before a save after
    it. torchdata's StatefulDataLoader counts by itself: give the checkpointer that one in its
    place.

    Args:
        dataset: map-style; the same samples in every process and every time.
        batch_size: samples a step over all ranks together; the number of ranks must divide it.
        seed: of the order.
        shuffle: False: the data set's own order.
        drop_last: leave out samples of an epoch that do not fill a batch. Otherwise ranks may have
            unequal parts of the last one, and with fewer samples than ranks some repeat its first.
        lanes: as ElasticDataLoader's.
        fingerprint: as ElasticDataLoader's.
        rank: of this process and ...
        world_size: ... their number; from the environment if not given.

    Raises:
        InputError: the data set has no length, or the numbers make no equal parts.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        lanes: int = 8,
        fingerprint: str = "",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._plan = plan_epochs(
            dataset,
            batch=batch_size,
            drop_last=drop_last,
            lanes=lanes,
            seed=seed,
            shuffle=shuffle,
            fingerprint=fingerprint,
            rank=rank,
            world_size=world_size,
        )
        self._position, self._epoch_batches = self._plan.position, self._plan.batches
        if batch_size % self._epoch_batches.world_size:
            raise errors.InputError(
                f"a batch of {batch_size} samples for {self._epoch_batches.world_size} "
                "processes has no "
                "equal parts, which a DataLoader with a sampler needs; choose one that every "
                "number of processes divides, or use ElasticDataLoader, which weighs unequal parts"
            )
        self.rank_batch_size = batch_size // self._epoch_batches.world_size
        """Samples of a step that this rank takes: the DataLoader's batch_size."""
        self._end_restored = False
        """Whether the restored epoch has no step left, and its loop has not begun here."""

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next iteration goes on with."""
        return self._position.epoch + self._is_over

    @property
    def done(self) -> int:
        """Samples of that epoch that are trained on, over all ranks, as ``advance`` tells."""
        return 0 if self._is_over else self._position.done

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; nothing, if it is the one that goes on."""
        self._leave_epoch()
        if epoch != self._position.epoch:
            self._position.epoch, self._position.done = epoch, 0
            self._end_restored = False

    def advance(self, steps: int = 1) -> None:
        """Steps were trained on; after the last of an epoch the next one is the next."""
        self._leave_epoch()
        rest = self._plan.remaining()
        self._position.done = rest.end_of(min(steps, rest.steps) - 1)

    @property
    def _is_over(self) -> bool:
        """Whether the last step of the epoch was trained on here."""
        return not (self._end_restored or self._plan.remaining().steps)

    def _leave_epoch(self) -> None:
        # Not at the last advance: a checkpoint of that step comes before the code after the loop.
        if self._is_over:
            self._position.next_epoch()

    def __iter__(self) -> Iterator[int]:
        """This rank's samples of the rest of the epoch."""
        self._leave_epoch()
        self._end_restored = False
        return _Indices(EpochPlan(copy.copy(self._position), self._epoch_batches))

    def __len__(self) -> int:
        """Samples of this rank in the rest of the epoch."""
        rest = self._epoch_batches if self._is_over else self._plan.remaining()
        found = rest.full * self.rank_batch_size
        if rest.steps > rest.full:
            last = self._position.samples - rest.begin_of(rest.full)
            found += sum(part.samples for part in rest.parts_of(last))
        return found

    def data_place(self, name: str) -> DataPosition:
        """How far this rank is, for the coordinator's status; from any thread."""
        course = self._position
        taken = course.done // self._epoch_batches.world_size
        return DataPosition(name, course.epoch, course.samples, course.done, taken)

    def state_dict(self) -> dict[str, Any]:
        """The place after the last step that ``advance`` told of; the same on all ranks."""
        return self._position.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a place; at the end of an epoch the next iteration has no sample.

        Raises:
            CheckpointError: it is a place in another data set, or of a newer version.
        """
        self._position.load_state_dict(state)
        self._end_restored = not self._plan.remaining().steps


class _Indices(Iterator[int]):
    """One after the other; its state is what was drawn, which StatefulDataLoader asks for."""

    def __init__(self, plan: EpochPlan) -> None:
        self._plan, self._position = plan, plan.position
        self._begin()

    def _begin(self) -> None:
        rest = self._plan.remaining()
        self._parts = rank_batches(rest, self._position.order())
        self._current = RankBatch(rest.parts_of(rest.batch)[0], self._position.done, [])
        self._index = 0

    def __next__(self) -> int:
        if self._index == len(self._current.indices):
            self._current, self._index = next(self._parts), 0
        found = self._current.indices[self._index]
        self._index += 1
        if self._index == len(self._current.indices):
            self._position.done = self._current.done
        return found

    def state_dict(self) -> dict[str, Any]:
        """The place after the last whole part."""
        return self._position.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after what was drawn."""
        self._position.load_state_dict(state)
        self._begin()
