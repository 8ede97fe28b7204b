# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One system under measurement, in a process of its own: JSON lines in, JSON lines out."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from typing import Any

import torch

from benchmarks.checkpoint_systems import memory, ownership_check
from benchmarks.checkpoint_systems.workload import Loop


class Skipped(Exception):
    """The system returned as if it had saved, and had not."""


class Peer:
    """What a system does; a subclass for each."""

    def open(self, loop: Loop, folder: pathlib.Path) -> None:
        """Get ready to save the loop's state below the folder."""
        self.loop, self.folder = loop, folder

    def save(self, step: int) -> None:
        """Return when the training loop may go on."""
        raise NotImplementedError

    def before_step(self) -> None:
        """Wait for what must be done before the state changes."""

    def waited(self) -> float:
        """Milliseconds that the last optimizer step waited inside of itself."""
        return 0.0

    def settle(self) -> None:
        """Wait until nothing of the last save goes on in the background."""

    def durable(self, step: int) -> None:
        """Save, and return when all files are synced; by default what settles, and sync."""
        self.save(step)
        self.before_step()
        self.settle()
        sync(self.folder)

    def capped(self, step: int) -> bool:
        """The same under the cap that the system sets itself; whether it sets one."""
        del step
        return False

    def begin(self, step: int) -> None:
        """Save to storage as training does, and return when it may go on."""
        self.save(step)
        self.before_step()

    def is_busy(self) -> bool:
        """Whether what begin started still goes on."""
        return False

    def die(self) -> None:
        """What the end of a process does for whoever restores in another one."""

    def restore(self, loop: Loop) -> None:
        """Bring the last save into a fresh loop."""
        raise NotImplementedError

    def account(self) -> dict[str, int]:
        """What became of the saves since begin was called."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Whatever else there is to tell."""
        return {}

    def held(self) -> dict[str, float]:
        """What the system's memory consists of, in MiB, where it has parts that can be told."""
        return {}

    def close(self) -> None:
        """End what runs beside this process."""


def sync(folder: pathlib.Path) -> None:
    """Have every file and folder on the storage."""
    for path in [folder, *folder.rglob("*")]:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # its owner tidies up
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Worker:
    """Answers requests by driving a peer."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._step = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request; its name is a method's."""
        name = request.pop("do")
        return getattr(self, f"do_{name}")(**request) or {}

    def do_prepare(self, folder: str, mebibytes: int, tensors: int) -> dict[str, Any]:
        """Make the module and optimizer, open the system, train one step.

        Returns:
            The memory that the loop alone has then, in MiB.
        """
        self._size = (mebibytes, tensors)
        self._loop = Loop(*self._size, seed=1)
        own = memory.used(os.getpid())
        path = pathlib.Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self._peer.open(self._loop, path)
        self._train(0.0)
        # Two moments and gradients have come to the values: one more state.
        return {"mebibytes": own + mebibytes}

    def do_save(self, compute_ms: float) -> dict[str, Any]:
        """Save, then a step; the milliseconds that the loop was blocked."""
        self._step += 1
        begun = time.perf_counter()
        self._peer.save(self._step)
        blocked = (time.perf_counter() - begun) * 1e3
        spent, waited = self._train(compute_ms)
        return {"ms": blocked + waited, "step_ms": spent - waited}

    def do_bare(self) -> dict[str, Any]:
        """Save, and nothing else."""
        self._step += 1
        begun = time.perf_counter()
        self._peer.save(self._step)
        return {"ms": (time.perf_counter() - begun) * 1e3}

    def do_step(self, compute_ms: float) -> dict[str, Any]:
        """A step without a save."""
        return {"step_ms": self._train(compute_ms)[0]}

    def do_settle(self) -> None:
        """Let the background come to rest."""
        self._peer.settle()

    def do_durable(self) -> dict[str, Any]:
        """Save until it is durable."""
        self._step += 1
        begun = time.perf_counter()
        self._peer.durable(self._step)
        return {"ms": (time.perf_counter() - begun) * 1e3}

    def do_capped(self) -> dict[str, Any]:
        """Save until it is durable, under the system's own cap; no time where it has none."""
        self._step += 1
        begun = time.perf_counter()
        if not self._peer.capped(self._step):
            return {}
        return {"ms": (time.perf_counter() - begun) * 1e3}

    def do_persist(self, compute_ms: float, least: int, most: int) -> dict[str, Any]:
        """Train while a save goes to storage: the steps' milliseconds."""
        self._step += 1
        self._peer.begin(self._step)
        found: list[float] = []
        while len(found) < least or (self._peer.is_busy() and len(found) < most):
            found.append(self._train(compute_ms)[0])
        return {"steps_ms": found}

    def do_sham(self, compute_ms: float, count: int) -> dict[str, Any]:
        """The same steps with nothing beside them."""
        return {"steps_ms": [self._train(compute_ms)[0] for _ in range(count)]}

    def do_restore(self) -> dict[str, Any]:
        """Save, and bring it back into a fresh module and optimizer, in memory of their own."""
        self._step += 1
        self._peer.save(self._step)
        self._peer.before_step()
        self._peer.settle()
        fresh = Loop(*self._size, seed=2)
        self._peer.die()
        memory.give_back(self._size[0])
        begun = time.perf_counter()
        self._peer.restore(fresh)
        views = ownership_check.take(fresh.tensors())
        spent = (time.perf_counter() - begun) * 1e3
        pairs = zip(self._loop.tensors(), fresh.tensors(), strict=True)
        equal = all(torch.equal(here, there) for here, there in pairs)
        return {"ms": spent, "equal": equal, "views": views}

    def do_facts(self) -> dict[str, Any]:
        """What else the system tells."""
        return self._peer.facts()

    def do_held(self) -> dict[str, float]:
        """Parts of the system's memory."""
        return self._peer.held()

    def do_many(self, count: int) -> dict[str, Any]:
        """Saves as fast as they go while one goes to storage; what became of them."""
        self._step += 1
        self._peer.begin(self._step)
        raised = 0
        for _ in range(count):
            self._step += 1
            try:
                self._peer.save(self._step)
            except Skipped:
                continue  # the account has them
            except Exception:  # noqa: BLE001 - counted
                raised += 1
        self._peer.settle()
        return {"saves": {"issued": count, "raised": raised, **self._peer.account()}}

    def _train(self, compute_ms: float) -> tuple[float, float]:
        """Milliseconds of a step and of the waiting in it."""
        begun = time.perf_counter()
        self._loop.backward(compute_ms)
        waiting = time.perf_counter()
        self._peer.before_step()
        waited = (time.perf_counter() - waiting) * 1e3
        self._loop.step()
        return (time.perf_counter() - begun) * 1e3, waited + self._peer.waited()


def serve(peer: Peer) -> None:
    """Answer until the input ends; what libraries print goes to the error stream."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(peer)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "quit":
            break
        try:
            reply = worker.answer(request)
        except Exception as error:  # noqa: BLE001 - told to the driver
            reply = {"error": f"{type(error).__name__}: {error}"[:500]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    peer.close()
