# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a sample costs each rank, as all ranks agree on it while they train.

Which samples a step has does not depend on it, only which rank computes how many of them. Every few
steps (rover_kf.sharding.cadence) the ranks exchange what a sample took them; from a step on that
lies after all that data loader workers may have fetched by then, all cut by it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import operator
import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rover_kf import errors
from rover_kf.sharding.batches import Batches, Part
from rover_kf.sharding.cadence import Cadence
from rover_kf.trainer.own_time import OwnTime

_log = logging.getLogger("rover_kf")

_GAIN = 0.03
"""Of the step's time, for which ranks that begin to iterate cut otherwise than before."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Exchange:
    """Costs on their way."""

    ended: int
    """Steps, when they were told."""
    work: dist.Work
    costs: list[torch.Tensor]


class Balance:
    """Of one rank.

    Args:
        model: whose backward pass shows when this rank has computed its part.
        whole: an epoch's batches.
        ahead: parts that data loader workers fetch before they are asked for.

    Raises:
        InputError: the ranks have no process group, or it is not of these ranks.
    """

    def __init__(self, model: torch.nn.Module, whole: Batches, ahead: int) -> None:
        if not dist.is_initialized() or dist.get_world_size() != whole.world_size:
            raise errors.InputError(
                f"balance needs the process group of the {whole.world_size} ranks that share the "
                "batch; call torch.distributed.init_process_group before the loader is made. Ranks "
                "that share a model (tensor or pipeline parallel) cannot be balanced"
            )
        if any(parameter.is_cuda for parameter in model.parameters()):
            _log.warning("balance: speeds are not measured on GPUs yet; all ranks take equal parts")
        self._model, self._whole = model, whole
        self._cadence = Cadence(ahead)
        self._group = _own_group()
        self._own, self._sync = OwnTime(), contextlib.ExitStack()
        self._exchanges: collections.deque[_Exchange] = collections.deque()
        self._nanoseconds = self._samples = self._ended = 0
        self._cost, self._waited = 0, 0.0
        self.costs: tuple[int, ...] = ()
        """Nanoseconds a sample, by rank; nothing is known: empty."""

    @staticmethod
    def parts_alike(model: torch.nn.Module | None) -> bool:
        """Whether all ranks must compute as many parts of a step.

        DistributedDataParallel alone is known to communicate with the last part only.
        """
        return not isinstance(model, DistributedDataParallel)

    def recall(self, costs: Sequence[int]) -> None:
        """Begin with what a checkpoint's ranks cost, until this one has measured itself."""
        kept = known(costs, self._whole.world_size)
        if kept and not self._cost:
            self._cost = kept[self._whole.rank]

    @contextlib.contextmanager
    def iterating(self, done: int) -> Iterator[None]:
        """Parts are drawn and computed from a place on; all ranks begin there.

        Raises:
            InputError: they do not.
        """
        self._exchanges.clear()
        self._ended, self._nanoseconds, self._samples = 0, 0, 0
        self._agree(done)
        self._ask()
        try:
            yield
        finally:
            self._sync.close()

    def give(self, part: Part) -> None:
        """The loop gets a part; what it computes of it may be followed by more of the same step."""
        if not part.last and isinstance(self._model, DistributedDataParallel):
            self._sync.enter_context(self._model.no_sync())

    def asked(self, part: Part) -> None:
        """The loop has used a part and asks for the next one."""
        self._sync.close()
        seconds = self._own.take() - self._waited
        # Workers and the model start in the first step: it tells little, and more than nothing.
        if seconds > 0 and (self._ended or not self.costs):
            self._nanoseconds += int(seconds * 1e9)
            self._samples += part.samples
        if part.last:
            self._ended += 1
            if self._cadence.exchanges(self._ended):
                self._exchange()
        self._ask()

    def at(self, step: int) -> tuple[tuple[int, ...], int]:
        """What a step is cut by, and the first later step that may be cut by something else.

        Args:
            step: since iterating began; not below the last one that was asked for.

        Raises:
            RoverError: it was drawn before the ranks could agree.
        """
        if step > self._cadence.known_until(self._ended):
            raise errors.RoverError(
                f"step {step} is drawn while step {self._ended} is trained on, more than "
                f"{self._cadence.ahead} ahead; balance needs batches in order, as DataLoader draws "
                "them"
            )
        while self._exchanges and self._cadence.counts_from(self._exchanges[0].ended) <= step:
            told = self._exchanges.popleft()
            begun = time.monotonic()
            told.work.wait()
            self._waited += time.monotonic() - begun
            found, gain = tuple(map(int, told.costs)), self._cadence.gain(told.ended)
            self.costs = decided(self._whole, self.costs, found, gain)
        return self.costs, self._cadence.next_change(step)

    def _ask(self) -> None:
        self._waited = 0.0
        self._own.begin({"model": self._model})

    def _exchange(self) -> None:
        """Tell the others what a sample has taken since the last time."""
        if self._samples:
            self._cost = max(self._nanoseconds // self._samples, 1)
            self._nanoseconds = self._samples = 0
        costs = [torch.zeros(1, dtype=torch.int64) for _ in range(self._whole.world_size)]
        own = torch.tensor([self._cost])
        work = dist.all_gather(costs, own, self._group, async_op=True)
        assert work is not None  # noqa: S101 - this rank is in the group
        self._exchanges.append(_Exchange(self._ended, work, costs))

    def _agree(self, done: int) -> None:
        """Exchange at once what is known, and see that all are at one place."""
        own = torch.tensor([self._cost, done, self._cadence.ahead])
        found = [torch.zeros_like(own) for _ in range(self._whole.world_size)]
        dist.all_gather(found, own, self._group)
        costs, places, ahead = torch.stack(found).T.tolist()
        if len(set(places)) > 1 or len(set(ahead)) > 1:
            raise errors.InputError(
                f"ranks begin at samples {places} of the epoch and fetch {ahead} parts ahead; "
                "restore the loader on all ranks, and give all the same num_workers"
            )
        self.costs = decided(self._whole, self.costs, tuple(costs), _GAIN)


def known(costs: Sequence[int], world_size: int) -> tuple[int, ...]:
    """Of what a checkpoint has kept of its ranks' costs that which this world may begin with.

    Args:
        costs: nanoseconds a sample, by rank of the world that saved; none: not measured.
        world_size: of this world; rank n of a world of another size is another machine.
    """
    return tuple(costs) if len(costs) == world_size and min(costs, default=0) > 0 else ()


def decided(
    whole: Batches, costs: tuple[int, ...], found: tuple[int, ...], gain: float
) -> tuple[int, ...]:
    """What the next steps are cut by; of the same numbers on all ranks, so the same decision.

    Args:
        whole: an epoch's batches.
        costs: nanoseconds a sample that steps are cut by now; none yet: empty.
        found: that were measured last; 0: not yet.
        gain: of a step's time, below which the cut stays.
    """
    if min(found) < 1:
        return costs
    now, then = (
        max(map(operator.mul, found, whole.shares_of(whole.batch, cut_by)))
        for cut_by in (costs, found)
    )
    return found if not costs or then < now * (1 - gain) else costs


def _own_group() -> dist.ProcessGroup:
    """Beside the script's: what it sends must not mix with ours."""
    made = dist.new_group(backend="gloo")
    assert isinstance(made, dist.ProcessGroup)  # noqa: S101 - all ranks are in it
    return made
