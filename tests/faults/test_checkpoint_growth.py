# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A training whose state grows on the way, killed as it grows: as if nothing had happened."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator

import pytest

from rover_kf.api import names
from rover_kf.checkpoint.arena.arena import Arena
from tests.support.pods import checkpoint_pod
from tests.support.process_pool.rank_server import RankServer, serving
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

TESTS = pathlib.Path(__file__).parents[1]
STEPS, GROWS, EVERY = 16, 8, 2
SCRIPT = f"""
import signal
import sys
import torch
import rover_kf

torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.ModuleDict({{"first": torch.nn.Linear(64, 64)}})
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
checkpointer = rover_kf.Checkpointer()

def grow():
    # A hundred times the state, and a parameter group of its own.
    generator = torch.Generator().manual_seed(2)
    late = torch.nn.Linear(64, 6400)
    with torch.no_grad():
        for parameter in late.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator))
    model["late"] = late
    optimizer.add_param_group({{"params": list(late.parameters()), "lr": 1e-2}})

known = checkpointer.peek()
if known is not None and known["grown"]:
    grow()
state = {{"model": model, "optimizer": optimizer, "grown": "late" in model}}
begun = checkpointer.restore(state)
print(f"resumed {{begun}} {{checkpointer.restored_from}}", flush=True)
for step in range(begun + 1, {STEPS} + 1):
    if step == {GROWS} + 1:
        grow()
        state["grown"] = True
    generator = torch.Generator().manual_seed(step)
    found = model["first"](torch.rand(8, 64, generator=generator))
    if "late" in model:
        found = model["late"](found)
    optimizer.zero_grad()
    found.square().mean().backward()
    optimizer.step()
    checkpointer.step(step, state, total_steps={STEPS})
    while step == int(sys.argv[1]):
        signal.pause()  # until it is killed: the step before must not be overwritten meanwhile
checkpointer.wait({STEPS})
checkpointer.close()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RankServer]:
    """Loads torch once for all trainings."""
    with serving(TESTS / "support" / "training" / "sample_ranks.py") as running:
        yield running


def _start(
    server: RankServer, pod: checkpoint_pod.Pod, script: pathlib.Path, round_: int, last: int = 0
) -> int:
    """The process that trains, to its end or until it is killed after that step at the latest."""
    environment = pod.environment(round_=round_)
    (rank,) = server.start([environment], command=[str(script), str(last)])
    return rank


def _whole(storage: pathlib.Path, round_: int) -> bytes:
    folder = storage / "demo" / f"step-{STEPS:012d}-{round_}"
    eventually((folder / "manifest.json").exists, what="the last step is durable")
    return (folder / "rank-00000.safetensors").read_bytes()


def _killed(
    server: RankServer, home: pathlib.Path, script: pathlib.Path, due: Callable[[Arena], bool]
) -> tuple[bytes, str, tuple[int, ...]]:
    """A training killed once something is seen of its slots, and its second run: what is stored in
    the end, what was restored, and the steps that the slots held when it was killed."""
    storage = home / "pvc"
    changes = {"checkpoint_every": EVERY, "storage": storage, "checkpoint_persist_seconds": 3600.0}
    with checkpoint_pod.pods(home / "pods", 1, **changes) as (pod,):
        arena = Arena(pod.settings.volume_path / "arena" / "0")
        rank = _start(server, pod, script, 1, GROWS + EVERY)
        eventually(lambda: due(arena), within=120, every=0.0005, what="the moment to kill")
        os.kill(rank, signal.SIGKILL)
        assert server.wait() == [-signal.SIGKILL]
        held = tuple(seal.state.step for seal in arena.sealed())
        _start(server, pod, script, 2)
        assert server.wait() == [0]
        (told,) = pod.told(names.EVENT_RESTORED)
        return _whole(storage, 2), told, held


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """With a short path, as sockets want: pytest's own are too long beside a pod's name."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="rv"))
    yield made
    shutil.rmtree(made)


def test_a_state_that_grows_is_never_without_a_step(server, folder):
    """A new parameter group makes the state a hundred times as large. Killed as its slots grow,
    with the step before as the only one; after it was sealed; and not at all: the same bytes."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    changes = {"checkpoint_every": EVERY, "storage": folder / "calm-pvc"}
    with checkpoint_pod.pods(folder / "calm", 1, **changes) as (pod,):
        _start(server, pod, script, 1)
        assert server.wait() == [0]
        calm = _whole(folder / "calm-pvc", 1)
    small = 2 << 20

    def growing(arena: Arena) -> bool:
        return arena.slot_bytes() > small

    found, told, held = _killed(server, folder / "growing", script, growing)
    print(f"killed while the slots grew: {held}; {told}")
    assert found == calm
    assert GROWS in held
    assert "from memory" in told

    def grown(arena: Arena) -> bool:
        return any(seal.state.step > GROWS for seal in arena.sealed())

    found, told, held = _killed(server, folder / "grown", script, grown)
    print(f"killed after: {held}; {told}")
    assert found == calm
    assert f"resumes at step {max(held)} from memory" in told
    assert max(held) > GROWS
