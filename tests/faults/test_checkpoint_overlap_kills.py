# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a training process while its state is copied beside training: a whole step is left."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.format import snapshot
from tests.support.pods import checkpoint_pod
from tests.support.pods.checkpoint_world import in_memory

pytestmark = pytest.mark.torch

KILLS, SEED = 20, 20261121

# Loads torch once and forks a trainer for each line that it reads. In the trainer every parameter
# and every momentum of a step is the step's number: a mixture of two steps is seen in any byte.
FORKS = """
import os, sys
import torch
import torch._dynamo  # The first step of an optimizer imports it, for more than a second.
from rover_kf.trainer.checkpointer import Checkpointer

def train():
    torch.set_num_threads(1)
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(1 << 18)) for _ in range(24)])
    buffer = torch.zeros(1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    state = {"model": model, "optimizer": optimizer, "buffer": buffer}
    checkpointer = Checkpointer(overlap=True, every=1)
    step = checkpointer.restore(state)
    while True:
        step += 1
        for parameter in model:
            # momentum becomes 0.5 * before + grad = step; the parameter goes up by one.
            before = optimizer.state[parameter].get("momentum_buffer", 0.0)
            parameter.grad = torch.full_like(parameter, float(step)) - 0.5 * before
        optimizer.step()
        with torch.no_grad():
            for parameter in model:
                parameter.fill_(float(step))
        buffer.fill_(float(step))
        checkpointer.step(step, state)
        buffer.fill_(-1.0)
        print("x", end="", flush=True)

print("ready", flush=True)
for line in sys.stdin:
    os.environ["ROVER_ROUND"] = line.strip()
    child = os.fork()
    if child == 0:
        train()
    print(child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def _check(arena: Arena) -> tuple[int, int]:
    """Newest sealed step, after checking every element of all that is sealed; and how many are."""
    seals = arena.sealed()
    for seal in seals:
        with arena.pin(seal) as pin:
            data = os.pread(pin.descriptor, seal.length, 0)
        found = snapshot.read(data)
        assert len(found.tensors) == 49
        for name, place in found.tensors.items():
            values = memoryview(data[place.begin : place.end]).cast("f")
            assert values[0] == seal.state.step, name
            assert data[place.begin : place.end] == data[place.begin : place.begin + 4] * len(
                values
            )
    return max((seal.state.step for seal in seals), default=0), len(seals)


def _forks(pod: checkpoint_pod.Pod) -> subprocess.Popen[bytes]:
    root = pathlib.Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", FORKS],
        env={**os.environ, **pod.environment(), "PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@pytest.fixture
def memory():
    """A folder in memory, as a pod's volume is."""
    with in_memory() as folder:
        yield folder


def test_a_trainer_killed_while_it_is_copied_leaves_a_whole_step(memory):
    """After each kill a step is sealed, whole in every tensor, not older than the one before."""
    chance, newest, torn = random.Random(SEED), 0, 0
    with checkpoint_pod.pods(memory, 1, arena_bytes=256 << 20) as (pod,), _forks(pod) as forks:
        assert forks.stdin is not None
        assert forks.stdout is not None
        assert forks.stdout.readline() == b"ready\n"
        arena = Arena(pod.settings.volume_path / "arena" / "0")
        for round_ in range(1, KILLS + 1):
            forks.stdin.write(b"%d\n" % round_)
            forks.stdin.flush()
            said = forks.stdout.readline().strip(b"x")
            assert forks.stdout.read(2) == b"xx", "two steps are done"
            end = time.monotonic() + chance.uniform(0.0, 0.1)
            while time.monotonic() < end:
                pass  # An instant, not a wait: the trainer runs on the other core.
            os.kill(int(said), signal.SIGKILL)
            assert forks.stdout.readline().strip(b"x\n") == b"gone"
            step, whole = _check(arena)
            assert step >= newest
            newest, torn = step, torn + (whole == 1)
        forks.stdin.close()
        print(f"{KILLS} kills, {torn} in mid-copy, {newest} steps sealed")
        assert torn > 0
        assert newest > KILLS
