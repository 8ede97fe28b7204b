# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""DataLoaders of a script while it is rehearsed: their batch, and how long they are waited for."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any

from torch.utils import data
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import dataloader

_BATCH_POSITION = 1
"""Of the batch among the positional arguments, after the data set."""


class LoaderRecorder:
    """What the script's loaders were made with and how long they were waited for.

    Args:
        factor: their batches are multiplied by it.
        in_process: load without workers: they could not hand over fake tensors.
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
        stated = (
            args[_BATCH_POSITION] if len(args) > _BATCH_POSITION else kwargs.get("batch_size", 1)
        )
        if stated is None or kwargs.get("batch_sampler") is not None:
            return args
        batch = self.batch = max(1, round(stated * self._factor))
        if len(args) > _BATCH_POSITION:
            return (*args[:_BATCH_POSITION], batch, *args[_BATCH_POSITION + 1 :])
        kwargs["batch_size"] = batch
        return args
