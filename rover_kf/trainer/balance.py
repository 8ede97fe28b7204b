# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a sample costs each rank, as all ranks agree on it while they train.

Which samples a step has does not depend on it, only which rank computes how many of them. Every few
steps the ranks exchange what a sample took them, without waiting for it; from a step on that lies
after all that data loader workers may have fetched by then, all cut by it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import operator
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rover_kf import errors
from rover_kf.sharding.batches import Batches, Part
from rover_kf.trainer.own_time import OwnTime

_log = logging.getLogger("rover_kf")

_EVERY = 16
"""Steps between two exchanges; the first ones come after 2, 4 and 8."""
_GAIN = 0.03
"""Of the step's time; for less the cut stays, since another batch size has its own price."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Exchange:
    """Costs on their way."""

    step: int
    """From which on they count."""
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
        self._lag = ahead + 1
        self._group = _own_group()
        self._own, self._sync = OwnTime(), contextlib.ExitStack()
        self._exchanges: collections.deque[_Exchange] = collections.deque()
        self._nanoseconds = self._samples = self._ended = 0
        self._cost, self._warm, self._waited = 0, False, 0.0
        self.costs: tuple[int, ...] = ()
        """Nanoseconds a sample, by rank; nothing is known: empty."""

    @staticmethod
    def parts_alike(model: torch.nn.Module | None) -> bool:
        """Whether all ranks must compute as many parts of a step.

        DistributedDataParallel alone is known to communicate with the last part only.
        """
        return not isinstance(model, DistributedDataParallel)

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
        if seconds > 0 and self._warm:
            self._nanoseconds += int(seconds * 1e9)
            self._samples += part.samples
        self._warm = self._warm or part.last
        if part.last:
            self._ended += 1
            if _exchanges_after(self._ended):
                self._exchange()
        self._ask()

    def at(self, step: int) -> tuple[tuple[int, ...], int]:
        """What a step is cut by, and the first later step that may be cut by something else.

        Args:
            step: since iterating began; not below the last one that was asked for.

        Raises:
            RoverError: it was drawn before the ranks could agree.
        """
        if step > self._ended + self._lag:
            raise errors.RoverError(
                f"step {step} is drawn while step {self._ended} is trained on, more than "
                f"{self._lag} ahead; balance needs batches in order, as DataLoader draws them"
            )
        while self._exchanges and self._exchanges[0].step <= step:
            begun = time.monotonic()
            self._exchanges[0].work.wait()
            self._waited += time.monotonic() - begun
            found = self._exchanges.popleft().costs
            self.costs = decided(self._whole, self.costs, tuple(map(int, found)))
        later = step + 1
        while not _exchanges_after(later - self._lag):
            later += 1
        return self.costs, later

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
        self._exchanges.append(_Exchange(self._ended + self._lag, work, costs))

    def _agree(self, done: int) -> None:
        """Exchange at once what is known, and see that all are at one place."""
        own = torch.tensor([self._cost, done, self._lag])
        found = [torch.zeros_like(own) for _ in range(self._whole.world_size)]
        dist.all_gather(found, own, self._group)
        costs, places, lags = torch.stack(found).T.tolist()
        if len(set(places)) > 1 or len(set(lags)) > 1:
            raise errors.InputError(
                f"ranks begin at samples {places} of the epoch and fetch {lags} parts ahead; "
                "restore the loader on all ranks, and give all the same num_workers"
            )
        self.costs = decided(self._whole, self.costs, tuple(costs))


def decided(whole: Batches, costs: tuple[int, ...], found: tuple[int, ...]) -> tuple[int, ...]:
    """What the next steps are cut by; of the same numbers on all ranks, so the same decision.

    Args:
        whole: an epoch's batches.
        costs: nanoseconds a sample that steps are cut by now; none yet: empty.
        found: that were measured last; 0: not yet.
    """
    if min(found) < 1:
        return costs
    now, then = (
        max(map(operator.mul, found, whole.shares_of(whole.batch, cut_by)))
        for cut_by in (costs, found)
    )
    return found if not costs or then < now * (1 - _GAIN) else costs


def _own_group() -> dist.ProcessGroup:
    """Beside the script's: what it sends must not mix with ours."""
    made = dist.new_group(backend="gloo")
    assert isinstance(made, dist.ProcessGroup)  # noqa: S101 - all ranks are in it
    return made


def _exchanges_after(ended: int) -> bool:
    return ended in {2, 4, 8} or (ended > 0 and ended % _EVERY == 0)
