# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Copies that all cores make which a restoring process may use: nobody trains meanwhile.

Fresh memory costs more than the copy into it: the kernel clears it page by page as it is touched.
Huge pages are not asked for: what the process before has freed is there in small ones, and to clear
large ones that a virtual machine has yet to be given took twice as long (256 MiB: 240 ms to 120).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

import torch

from rover_kf.trainer.hands import Hands
from rover_kf.trainer.memory_advice import POPULATE_WRITE, advise
from rover_kf.trainer.state import PLAIN, copyable
from rover_kf.trainer.transfer import BATCH_BYTES, calls
from rover_kf.trainer.work import Work

_PAGE = mmap.PAGESIZE
_TOUCH_BYTES = 4 << 20

Pair = tuple[torch.Tensor, torch.Tensor]


class Copies:
    """Asked for one by one, made together."""

    def __init__(self) -> None:
        self._pairs: list[Pair] = []
        self._fresh: list[torch.Tensor] = []

    def of(self, source: torch.Tensor) -> torch.Tensor:
        """A tensor that will have the source's values after ``fill``.

        Args:
            source: contiguous, on the host; read by ``fill``.
        """
        copy = torch.empty_like(source)
        self._fresh.append(copy)
        self._pairs.append((copyable(copy), copyable(source)))
        return copy

    def into(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        """Have ``fill`` overwrite a live tensor; False if it has to be done another way.

        Args:
            target: any.
            source: as for ``of``.
        """
        alike = (target.shape, target.dtype) == (source.shape, source.dtype)
        if not alike or type(target) not in PLAIN or target.is_cuda or not target.is_contiguous():
            return False
        self._pairs.append((copyable(target.detach()), copyable(source)))
        return True

    def touch(self, is_over: Callable[[], bool]) -> None:
        """Make the memory of what ``of`` gave present, as long as there is time.

        Where the kernel has no such call (before Linux 5.14), nothing changes.

        Args:
            is_over: whether filling could begin, which goes on with more threads.
        """
        for begin, end in _ranges(self._fresh):
            for piece in range(begin, end, _TOUCH_BYTES):
                if is_over():
                    return
                advise(piece, min(_TOUCH_BYTES, end - piece), POPULATE_WRITE)

    def fill(self, hands: Hands) -> None:
        """Copy the values into all that were asked for.

        Args:
            hands: threads that help.
        """
        work = Work(_pieces(self._pairs))
        self._pairs = []
        hands.lend(work)
        work.wait()
        if work.error is not None:
            raise work.error


def _ranges(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Of addresses, whole pages that tensors lie in; those of neighbours are one."""
    found: list[tuple[int, int]] = []
    for tensor in sorted(tensors, key=torch.Tensor.data_ptr):
        if not tensor.nbytes:
            continue
        begin = tensor.data_ptr() // _PAGE * _PAGE
        end = -(-(tensor.data_ptr() + tensor.nbytes) // _PAGE) * _PAGE
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _pieces(pairs: list[Pair]) -> list[Callable[[], None]]:
    found: list[Callable[[], None]] = []
    batch: list[Pair] = []
    size = 0
    for pair in pairs:
        if pair[1].nbytes > BATCH_BYTES:
            found += _calls([pair])
            continue
        batch.append(pair)
        size += pair[1].nbytes
        if size >= BATCH_BYTES:
            found += _calls(batch)
            batch, size = [], 0
    return [*found, *_calls(batch)] if batch else found


def _calls(pairs: list[Pair]) -> list[Callable[[], None]]:
    return calls([copy for copy, _ in pairs], [source for _, source in pairs])
