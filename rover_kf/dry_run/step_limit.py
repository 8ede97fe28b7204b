# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The script's steps and DataLoaders: counted, timed, and ended when there were enough."""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils import data
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import dataloader

from rover_kf.dry_run import model_size
from rover_kf.dry_run.messages import WARM_UP, DryRunRequest, DryRunResult, ModelState
from rover_kf.dry_run.model_size import LiveTensors
from rover_kf.system import procfs

_BATCH_POSITION = 1
"""Of the batch among the positional arguments, after the data set."""


class LoaderRecorder:
    """What the script's loaders were made with, and how long they were waited for.

    Batches are multiplied by the factor. Workers could not hand over fake tensors: with
    ``in_process`` there are none.
    """

    def __init__(self, factor: float, *, in_process: bool = False) -> None:
        self._factor, self._in_process = factor, in_process
        self.waited = 0.0
        """Seconds, summed."""
        self.batch = 0
        """Of the loader that was used last."""
        self.workers = 0

    @contextlib.contextmanager
    def watch(self) -> Iterator[LoaderRecorder]:
        """Watch every DataLoader that is made or used meanwhile."""
        made, following = data.DataLoader.__init__, dataloader._BaseDataLoaderIter.__next__  # noqa: SLF001 - the one place where all iterators pass

        @functools.wraps(made)
        def make(loader: Any, *args: Any, **kwargs: Any) -> None:
            if self._in_process:
                kwargs.update(num_workers=0, prefetch_factor=None, persistent_workers=False)
            made(loader, *self._resize(args, kwargs), **kwargs)

        @functools.wraps(following)
        def follow(iterator: Any) -> Any:
            begun = time.perf_counter()
            try:
                with _disable_current_modes() if self._in_process else contextlib.nullcontext():
                    return following(iterator)
            finally:
                self.waited += time.perf_counter() - begun
                self.workers = getattr(iterator, "_num_workers", 0)

        data.DataLoader.__init__ = make  # type: ignore[method-assign, assignment] # what watching is
        dataloader._BaseDataLoaderIter.__next__ = follow  # type: ignore[method-assign, assignment] # noqa: SLF001 - as above
        try:
            yield self
        finally:
            data.DataLoader.__init__ = made  # type: ignore[method-assign]
            dataloader._BaseDataLoaderIter.__next__ = following  # type: ignore[method-assign] # noqa: SLF001

    def _resize(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments with the batch changed, in place where it is named."""
        placed = len(args) > _BATCH_POSITION
        stated = args[_BATCH_POSITION] if placed else kwargs.get("batch_size", 1)
        if stated is None or kwargs.get("batch_sampler") is not None:
            return args
        batch = self.batch = max(1, round(stated * self._factor))
        if placed:
            return (*args[:_BATCH_POSITION], batch, *args[_BATCH_POSITION + 1 :])
        kwargs["batch_size"] = batch
        return args


class CpuUsage:
    """CPU time over wall time since ``begin``."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._used = 0.0
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._begun, self._used = time.perf_counter(), _cpu_seconds()

    @property
    def seconds(self) -> float:
        """Since then."""
        return time.perf_counter() - self._begun

    def cores(self) -> float:
        """Mean since then; children that ended meanwhile do not count."""
        return max(0.0, _cpu_seconds() - self._used) / max(self.seconds, 1e-9)


def _cpu_seconds() -> float:
    children = procfs.children(os.getpid())
    return time.process_time() + sum(map(procfs.cpu_seconds, children))


COUNTED_STEPS = 2
"""At the end, under the count of live tensors: the first may lack what the second finds."""


class StepLimitReached(BaseException):
    """Ends the script; no Exception, so that a script that catches all does not go on."""


class StepRecorder:
    """A recorder of every step of the first optimizer that steps."""

    def __init__(self, request: DryRunRequest, loaders: LoaderRecorder) -> None:
        self._request, self._loaders = request, loaders
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._root: nn.Module | None = None
        self._samples = 0
        self._made = 0
        self._times: list[float] = []
        self._waits: list[float] = []
        self._last = time.perf_counter()
        self._waited = 0.0
        self._counter: LiveTensors | None = None
        self._forward_peak = self._update_peak = 0
        self._copy_seconds = 0.0
        self._min_seconds = request.min_seconds
        self._left = 0 if request.fake else COUNTED_STEPS
        self._enough = False
        self._busy = CpuUsage()
        self._cores = 0.0

    @contextlib.contextmanager
    def watch(self, counter: LiveTensors | None = None) -> Iterator[StepRecorder]:
        """Watch what the script does meanwhile.

        The counter of a fake run is entered already; a real run counts its last steps only.
        """
        self._counter = counter
        # A hook on every module costs time: it is taken off after the first step.
        self._forwards = modules.register_module_forward_pre_hook(self._forward)
        before = optimizers.register_optimizer_step_pre_hook(self._before_step)
        after = optimizers.register_optimizer_step_post_hook(self._after_step)
        try:
            yield self
        finally:
            before.remove()
            after.remove()
            self._forwards.remove()
            if counter is None and self._counter is not None:
                self._counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def make_result(self, error: str = "") -> DryRunResult:
        """What was seen so far."""
        used = list(self._optimizers.values())
        weights = model_size.collect_parameters(used, self._root)
        trained = (weight for weight in weights if weight.requires_grad)
        return DryRunResult(
            steps=self._made,
            step_seconds=statistics.median(self._times) if self._times else 0.0,
            wait_seconds=statistics.fmean(self._waits) if self._waits else 0.0,
            cores=self._cores,
            batch=self._samples or self._loaders.batch,
            loader_workers=self._loaders.workers,
            state=ModelState(
                parameters=sum(weight.numel() for weight in weights),
                parameter_bytes=model_size.count_bytes(weights),
                gradient_bytes=model_size.count_bytes(trained),
                buffer_bytes=model_size.count_bytes(model_size.collect_buffers(self._root)),
                largest_layer_bytes=model_size.largest_layer(self._root),
                optimizer=type(used[0]).__name__ if used else "",
                optimizer_bytes=model_size.count_bytes(model_size.collect_optimizer_state(used)),
                copy_seconds=self._copy_seconds,
            ),
            forward_peak=self._forward_peak,
            update_peak=self._update_peak,
            error=error,
        )

    def _forward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self._made or not module.training:
            return
        if self._root is None:
            self._root = module
        first = next((item for item in args if isinstance(item, torch.Tensor) and item.dim()), None)
        if module is self._root and first is not None:
            self._samples += first.shape[0]

    def _before_step(self, *_: object) -> None:
        if self._counter is not None:
            self._forward_peak = max(self._forward_peak, self._counter.peak)
            self._counter.reset_peak()

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._optimizers.setdefault(id(optimizer), optimizer)
        if id(optimizer) != next(iter(self._optimizers)):
            return
        self._made += 1
        if self._counter is not None:
            self._update_peak = max(self._update_peak, self._counter.peak)
            self._counter.reset_peak()
        if self._made == 1:
            self._forwards.remove()
        if self._enough:
            self._left -= 1
        elif self._made > WARM_UP:
            self._time(time.perf_counter())
        if self._enough and not self._left:
            raise StepLimitReached
        if self._made == WARM_UP:
            self._busy.begin()
        self._last, self._waited = time.perf_counter(), self._loaders.waited

    def _time(self, now: float) -> None:
        self._times.append(now - self._last)
        self._waits.append(self._loaders.waited - self._waited)
        few = len(self._times) < self._request.steps
        self._enough = not few and (self._request.fake or self._busy.seconds >= self._min_seconds)
        if self._enough:
            self._cores = self._busy.cores()
            if self._left:
                self._count()

    def _count(self) -> None:
        used = list(self._optimizers.values())
        weights = model_size.collect_parameters(used, self._root)
        state = [
            *weights,
            *model_size.collect_buffers(self._root),
            *model_size.collect_optimizer_state(used),
        ]
        self._copy_seconds = model_size.measure_copy_seconds(state)
        gradients = [tensor.grad for tensor in weights if tensor.grad is not None]
        self._counter = LiveTensors([*state, *gradients])
        self._counter.__enter__()  # type: ignore[no-untyped-call]
