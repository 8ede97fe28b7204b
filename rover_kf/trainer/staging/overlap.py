# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A copy that goes on while training computes, until the next optimizer step.

What only an optimizer's step changes (parameters, moments) can be copied after save() has returned:
a hook before every optimizer's step waits for it, after the closure if it has one. SIGTERM waits as
well, so that a process that is asked to end leaves the step whole that it was saving.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from rover_kf.trainer.staging.copy_threads import LOWER_PRIORITY, CopyThreads, SharedWork
from rover_kf.trainer.staging.reentrancy import ReentrancyGuard
from rover_kf.trainer.state.addresses import Addresses
from rover_kf.trainer.state.traverse import iter_instances


class Overlap:
    """At most one copy at a time.

    Args:
        guard: of the calls that wait for it; an optimizer's step is one.
    """

    def __init__(self, guard: ReentrancyGuard) -> None:
        self._guard = guard
        self._threads = CopyThreads(1, nice=LOWER_PRIORITY)
        self._work: SharedWork | None = None
        self._hook: RemovableHandle | None = None
        self._handles_sigterm = False
        self._waiting: int | None = None
        """Thread that helps with the copy and waits for it."""
        self._termination_requested = False
        self.waited_seconds = 0.0
        """That optimizer steps have waited, since it was last set to 0."""

    def start(self, work: SharedWork) -> None:
        """Begin with it; the one before has been waited for."""
        self._work = work
        if work.is_done:
            return
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._before_step)
        self._catch()
        self._threads.submit(work)

    @property
    def is_done(self) -> bool:
        """Whether no copy is under way."""
        return self._work is None or self._work.is_done

    def wait(self) -> None:
        """Wait for the copy, helping with it; its error stays for ``finish``.

        Raises:
            BaseException: what interrupted this thread; the copy goes on, and stays to be waited
                for.
        """
        if self._work is None:
            return
        if not self._work.is_done:
            begun = time.monotonic()
            self._waiting = threading.get_ident()
            try:
                self._work.wait()
            finally:
                self._waiting = None
            self.waited_seconds += time.monotonic() - begun
        self._release()
        if self._termination_requested and threading.current_thread() is threading.main_thread():
            _end(signal.SIGTERM)

    def finish(self) -> None:
        """Wait for the copy.

        Raises:
            BaseException: whatever the copy failed with; once.
        """
        self.wait()
        work, self._work = self._work, None
        if work is not None and work.error is not None:
            raise work.error

    def close(self) -> None:
        """Let go of thread and hook; what is under way has been waited for."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._threads.close()

    def _before_step(
        self, optimizer: Optimizer, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = named.get("closure", given[1] if len(given) > 1 else None)
        # Torch's own change nothing before they have called it: what it computes, forward and
        # backward, is what the copy goes beside (LBFGS, and Lightning's loops).
        own = type(optimizer).__module__.startswith("torch.optim.")
        if closure is None or not own or self.is_done:
            self._wait_guarded()
            return None
        after = functools.partial(self._run_closure, closure)
        if "closure" in named:
            return given, {**named, "closure": after}
        return (given[0], after, *given[2:]), named

    def _run_closure(self, closure: Callable[[], Any]) -> Any:
        found = closure()
        self._wait_guarded()
        return found

    def _wait_guarded(self) -> None:
        with self._guard.held():
            self.wait()

    def _catch(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)
            self._handles_sigterm = True

    def _release(self) -> None:
        if self._handles_sigterm and threading.current_thread() is threading.main_thread():
            self._handles_sigterm = False
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_sigterm(self, number: int, _: FrameType | None) -> None:
        if self._waiting == threading.get_ident():
            # It came in the middle of a piece of the copy, which goes on only after this.
            self._termination_requested = True
            return
        self.wait()
        _end(number)


def _end(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


class OptimizerOwned:
    """Which tensors nothing but an optimizer of the state should change.

    Asked at each save; looked up anew when one of them is another, or another one is one of them.
    Others may be new at each save, as the states of random generators are.
    """

    def __init__(self) -> None:
        self._generation = -1
        self._data_ptrs: Addresses = []
        self._names: frozenset[str] = frozenset()
        self._indexes: frozenset[int] = frozenset()
        self._owned: frozenset[int] = frozenset()

    def names(
        self,
        generation: int,
        state: Mapping[str, object],
        tensors: Mapping[str, torch.Tensor],
        data_ptrs: Addresses,
    ) -> frozenset[str]:
        """Their names.

        Args:
            generation: of the names, shapes and types (rover_kf.trainer.state.flatten_cache).
            state: as it was given to save.
            tensors: of it.
            data_ptrs: where they are.
        """
        if generation != self._generation or not self._are_unmoved(data_ptrs):
            self._names = optimizer_only(state, tensors)
            places = (place for place, name in enumerate(tensors) if name in self._names)
            self._indexes = frozenset(places)
            self._owned = frozenset(data_ptrs[place] for place in self._indexes)
        self._generation, self._data_ptrs = generation, data_ptrs
        return self._names

    def _are_unmoved(self, data_ptrs: Addresses) -> bool:
        if data_ptrs == self._data_ptrs:
            return True
        pairs = enumerate(zip(data_ptrs, self._data_ptrs, strict=True))
        moved = [place for place, (now, before) in pairs if now != before]
        return self._indexes.isdisjoint(moved) and self._owned.isdisjoint(
            data_ptrs[i] for i in moved
        )


def optimizer_only(
    state: Mapping[str, object], tensors: Mapping[str, torch.Tensor]
) -> frozenset[str]:
    """Names of the tensors that nothing but an optimizer of the state should change.

    Args:
        state: as it was given to save.
        tensors: of it.
    """
    owned: set[int] = set()
    for optimizer in iter_instances(state, Optimizer):
        for group in optimizer.param_groups:
            owned.update(_address(parameter) for parameter in group["params"])
        for values in optimizer.state.values():
            if isinstance(values, dict):
                items = values.values()
                owned.update(_address(item) for item in items if isinstance(item, torch.Tensor))
    owned.discard(0)
    return frozenset(
        name
        for name, tensor in tensors.items()
        if tensor.data_ptr() in owned and not tensor.is_inference()
    )


def _address(tensor: torch.Tensor) -> int:
    to_local = getattr(tensor, "to_local", None)  # of a DTensor: this rank's part
    local = to_local() if to_local is not None else tensor
    return int(local.data_ptr())
