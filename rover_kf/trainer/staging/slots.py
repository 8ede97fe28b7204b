# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Both slots in this process's memory, mapped and prefaulted in the background.

The sidecar reserves a slot's pages, and so pays for them; this process has to map each of them,
and the kernel clears it then. That takes longer than a copy, so it begins as soon as the state is
known, in a thread of low priority; a save that comes earlier helps with its own slot and waits for
no other.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import logging
import mmap
import os
import pathlib
from collections.abc import Callable

import torch

from rover_kf import errors
from rover_kf.api.checkpoints import ArenaReply
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import SLOTS
from rover_kf.trainer.staging import cuda
from rover_kf.trainer.staging.copy_threads import LOWER_PRIORITY, CopyThreads, SharedWork

DONT_NEED = 4
"""MADV_DONTNEED."""


POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE; Linux 5.14."""


def madvise(address: int, size: int, advice: int) -> int:
    """Give the kernel advice, without the interpreter's lock; 0, or errno.

    Args:
        address: a page's.
        size: bytes.
        advice: one of this module's.
    """
    libc = _libc()
    done = libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_int(advice))
    return ctypes.get_errno() if done else 0


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


_log = logging.getLogger("rover_kf")


RequestArena = Callable[[int], ArenaReply]
"""Asks the sidecar for slots of that many bytes."""


_PIECE_BYTES = 4 << 20


class SlotBuffers:
    """One a saver.

    Args:
        request_arena: asks the sidecar for slots.
    """

    def __init__(self, request_arena: RequestArena) -> None:
        self._request_arena = request_arena
        self._threads = CopyThreads(1, nice=LOWER_PRIORITY)
        self._preparing: SharedWork | None = None
        self._arena: Arena | None = None
        self._prefaulting: tuple[SharedWork, ...] = ()
        self._pinned = False
        self.buffers: tuple[torch.Tensor, ...] = ()
        """Each slot's bytes; new ones after ``reach`` had to grow them."""

    @property
    def arena(self) -> Arena:
        """The records beside the slots; there once ``reach`` was called."""
        assert self._arena is not None  # noqa: S101 - the saver calls reach first
        return self._arena

    def prepare(self, length: int) -> None:
        """Begin to get slots of about that length; returns at once."""
        if self._preparing is None and not self.fits(length):
            self._preparing = SharedWork([functools.partial(self._map_arena, length)])
            self._threads.submit(self._preparing)

    def fits(self, length: int) -> bool:
        """Whether a snapshot of that length fits what is mapped."""
        return bool(self.buffers) and self.buffers[0].numel() >= length

    def ensure(self, length: int) -> None:
        """Have slots of at least that length.

        Raises:
            ArenaTooSmall: they do not fit the volume or the policy.
            SidecarUnavailable: nobody answers.
        """
        self.wait_prepared()
        if not self.fits(length):
            self._map_arena(length)

    def wait_prepared(self) -> None:
        """Wait for what ``prepare`` began with; what it failed with, a save meets again."""
        asking = self._preparing
        if asking is not None:
            asking.wait()
            self._preparing = None  # only now: a wait that Ctrl-C ends is made again
            if asking.error is not None:
                _log.debug("rover-kf: no slots ahead of the first save: %s", asking.error)

    def wait_ready(self, slot: int, *, pinned: bool) -> torch.Tensor:
        """A slot's bytes, prefaulted.

        Args:
            slot: which.
            pinned: whether a CUDA device is going to write it.
        """
        work = self._prefaulting[slot]
        work.wait()
        if work.error is not None:
            raise errors.CheckpointError(
                f"slot {slot} of {self.arena.directory} cannot be mapped: {work.error}"
            ) from work.error
        if pinned and not self._pinned:
            for buffer in self.buffers:
                cuda.host_register(buffer)
            self._pinned = True
        return self.buffers[slot]

    def close(self) -> None:
        """Let go of the memory and the thread."""
        self.wait_prepared()
        self._drop()
        self._threads.close()

    def _map_arena(self, length: int) -> None:
        reply = self._request_arena(length)
        self._drop()
        arena = Arena(pathlib.Path(reply.directory))
        size = arena.slot_bytes()
        self.buffers = tuple(_map(arena.slot_path(slot), size) for slot in SLOTS)
        self._arena = arena
        self._prefaulting = tuple(SharedWork(_pieces(buffer)) for buffer in self.buffers)
        for work in self._prefaulting:
            self._threads.submit(work)

    def _drop(self) -> None:
        for work in self._prefaulting:
            work.wait()
        if self._pinned:
            for buffer in self.buffers:
                cuda.host_unregister(buffer)
        self._pinned, self._prefaulting, self.buffers, self._arena = False, (), (), None


def _map(path: pathlib.Path, size: int) -> torch.Tensor:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        with torch.inference_mode(mode=False):  # where a script may be, and later is not
            return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
    finally:
        os.close(descriptor)


def _pieces(buffer: torch.Tensor) -> list[Callable[[], None]]:
    begin, size = buffer.data_ptr(), buffer.numel()
    return [
        functools.partial(_populate, buffer, begin + offset, min(_PIECE_BYTES, size - offset))
        for offset in range(0, size, _PIECE_BYTES)
    ]


def _populate(_keeps: torch.Tensor, address: int, size: int) -> None:
    number = madvise(address, size, POPULATE_WRITE)
    if number not in (0, errno.EINVAL):  # an old kernel: the first copy maps page by page
        raise OSError(number, os.strerror(number))
