# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Copies that all cores make which a restoring process may use: nobody trains meanwhile.

Fresh memory costs more than the copy into it: the kernel clears it page by page as it is touched.
So what goes into fresh memory, which nobody sees yet, is copied while names are still looked up.
Huge pages are not asked for: what the process before has freed is there in small ones, and to clear
large ones that a virtual machine has yet to be given took twice as long (256 MiB: 240 ms to 120).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from rover_kf.trainer.staging.copy_batches import BATCH_BYTES, chunks, copy
from rover_kf.trainer.staging.copy_threads import CopyThreads, SharedWork, one_torch_thread
from rover_kf.trainer.state import strides
from rover_kf.trainer.state.flatten import PLAIN, copyable
from rover_kf.trainer.state.strides import Strides

_AHEAD_BYTES = 4 * BATCH_BYTES
"""Of one call ahead: who comes back from one waits for the interpreter's lock, which is in use."""

Pair = tuple[torch.Tensor, torch.Tensor]


class ParallelCopies:
    """Asked for one by one, made together.

    Args:
        threads: threads that help.
    """

    def __init__(self, threads: CopyThreads) -> None:
        self._threads = threads
        self._fresh: list[Pair] = []
        """Into memory of their own, not begun."""
        self._fresh_bytes = 0
        self._live: list[Pair] = []
        """Into the live state."""
        self._submitted: list[SharedWork] = []

    def schedule_copy(self, source: torch.Tensor, stride: Strides | None = None) -> torch.Tensor:
        """A tensor that will have the source's values after ``fill``.

        Args:
            source: contiguous, on the host; read until then.
            stride: how it is to lie in memory; None: as the source does.
        """
        copy = strides.empty(source, stride)
        self._fresh.append((copy, source))
        self._fresh_bytes += source.nbytes
        if self._fresh_bytes >= _AHEAD_BYTES:
            self._submit_fresh()
        return copy

    def schedule_overwrite(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        """Have ``fill`` overwrite a live tensor; False if it has to be done another way.

        Args:
            target: any.
            source: as for ``of``.
        """
        alike = (target.shape, target.dtype) == (source.shape, source.dtype)
        if not alike or type(target) not in PLAIN or target.is_cuda or not target.is_contiguous():
            return False
        if target.is_conj() or target.is_neg():  # its bytes are not its values
            return False
        if target.is_inference():  # can be written in inference mode alone, where no helper is
            return False
        self._live.append((target.detach(), source))
        return True

    def copy_ahead(self, is_over: Callable[[], bool]) -> None:
        """Copy what ``of`` gave, as long as there is time; the live state stays as it is.

        Args:
            is_over: whether ``fill`` could begin, which goes on with it.
        """
        self._submit_fresh()
        with one_torch_thread():
            for work in self._submitted:
                work.help(is_over)

    def fill(self) -> None:
        """Copy the values into all that were asked for."""
        self._submit_fresh()
        self._submit(_pieces(self._live, BATCH_BYTES))
        self._live = []
        begun, self._submitted = self._submitted, []
        # Nobody waits for the last piece of one while there are pieces of the next.
        with one_torch_thread():
            for work in begun:
                work.help()
        for work in begun:
            work.wait()
            if work.error is not None:
                raise work.error

    def discard(self) -> None:
        """Give up what has not been copied, and the memory of what has."""
        for work in self._submitted:
            work.cancel()
        self._fresh, self._live, self._submitted = [], [], []

    def _submit_fresh(self) -> None:
        if self._fresh:
            self._submit(_pieces(self._fresh, _AHEAD_BYTES))
            self._fresh, self._fresh_bytes = [], 0

    def _submit(self, pieces: list[Callable[[], None]]) -> None:
        work = SharedWork(pieces)
        self._submitted.append(work)
        self._threads.submit(work)


def _pieces(pairs: list[Pair], batch_bytes: int) -> list[Callable[[], None]]:
    found: list[Callable[[], None]] = []
    batch: list[Pair] = []
    size = 0
    for pair in pairs:
        if pair[1].nbytes > BATCH_BYTES:
            found += _calls([pair])
            continue
        batch.append(pair)
        size += pair[1].nbytes
        if size >= batch_bytes:
            found += _calls(batch)
            batch, size = [], 0
    return [*found, *_calls(batch)] if batch else found


def _calls(pairs: list[Pair]) -> list[Callable[[], None]]:
    targets = [copyable(target) for target, _ in pairs]
    sources = [copyable(source) for _, source in pairs]
    parts = chunks(sources[0]) if len(pairs) == 1 and targets[0].is_contiguous() else []
    if not parts:
        return [functools.partial(copy, targets, sources)]
    there, here = targets[0].view(-1), sources[0].view(-1)
    return [functools.partial(copy, [there[cut]], [here[cut]]) for cut in parts]
