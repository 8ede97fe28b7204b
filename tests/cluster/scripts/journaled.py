# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a sample script unchanged and writes down what its weights are at every step and restore.

``journaled.py digits.py --steps 100``: a file a process in the folder JOURNAL, which outlives pods:
``<monotonic seconds> <rank> <world size> stepped|restored <step> <sha256> <source> <loss>
<samples>``, one line each. Weights are parameters and the optimizer's state, which all ranks have
alike; BatchNorm's running figures are each rank's own. The loss is the mean of the rank's samples.
"""

import hashlib
import os
import pathlib
import socket
import time

import torch
import wrapped

import rover_kf

JOURNAL = pathlib.Path(os.environ.get("JOURNAL", "/checkpoints/journal"))


def tensors(value):
    """Those of nested plain data, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from tensors(value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def digest(state):
    """Of the weights."""
    found = hashlib.sha256()
    weights = [*state["model"].parameters(), *tensors(state["optimizer"].state_dict())]
    for tensor in weights:
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


class Journaled(rover_kf.Checkpointer):
    """The same, written down."""

    def restore(self, state):
        """Restore, then write."""
        step = super().restore(state)
        self._write("restored", step, state, self.restored_from, 0)
        return step

    def step(self, step, state, **known):
        """Write, then do the same."""
        self._write("stepped", step, state, "-", known.get("samples", 0))
        return super().step(step, state, **known)

    def _write(self, verb, step, state, source, samples):
        rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
        place = JOURNAL / f"{socket.gethostname()}.{rank}.{os.getpid()}.txt"
        with place.open("a") as file:
            file.write(
                f"{time.monotonic()} {rank} {world} {verb} {step} {digest(state)} {source} "
                f"{state['loss']} {samples}\n"
            )


JOURNAL.mkdir(exist_ok=True)
wrapped.run(Journaled)
