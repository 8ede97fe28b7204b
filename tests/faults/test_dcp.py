# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint's save and load go through the memory, at any number of ranks."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint_tools.consolidated_state import open_state
from rover_kf.checkpoint_tools.export import export
from rover_kf.checkpoint_tools.locate import locate
from tests.support.pods import checkpoint_pod
from tests.support.training.sharded_training import digest_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "training" / "dcp_training.py"


class Runs:
    """What one process is to fork, in this order."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._planned: list[dict] = []
        self._rounds: dict[int, int] = {}

    def add(self, way: str, pods: list[checkpoint_pod.Pod], level: str, **more: object) -> int:
        """One rank in each of those pods; its number."""
        round_ = self._rounds[id(pods[0])] = self._rounds.get(id(pods[0]), 0) + 1
        local = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(checkpoint_pod.free_port())}
        ranks = [
            {**pod.environment(rank=rank, world_size=len(pods), round_=round_), **local}
            for rank, pod in enumerate(pods)
        ]
        result = str(self._folder / f"result-{len(self._planned)}.json")
        planned = {"way": way, "ranks": ranks, "result": result, "level": level}
        self._planned.append({"stock": None, "export": None, **planned, **more})
        return len(self._planned) - 1

    def told(self) -> list[dict]:
        """Run them; what each rank 0 told."""
        subprocess.run(
            [sys.executable, SCRIPT, json.dumps(self._planned)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=True,
            timeout=240,
        )
        return [json.loads(pathlib.Path(run["result"]).read_text()) for run in self._planned]


def check_tools_export(job: pathlib.Path, stock: pathlib.Path) -> None:
    """What rover-kf checkpoint export makes of the stored step is what torch's own save made of the
    same state: loaded over it, it changes nothing. What rank 0 measured stands in the manifest."""
    place = locate(str(job))
    state = open_state(place.storage, place.checkpoint(6))
    assert place.storage.load(place.checkpoint(6)).metrics == {"loss": 6 / 8, "rank": 0}
    ours, file = job.parent / "ours", job.parent / "ours.pt"
    export(state, "dcp", ours)
    export(state, "torch", file)
    dcp_to_torch_save(stock, job.parent / "stock.pt")
    nested = torch.load(job.parent / "stock.pt", weights_only=True)
    loaded = copy.deepcopy(nested)
    for tensor in loaded["model"].values():
        tensor.zero_()
    loaded["progress"]["step"] = 0
    dcp.load(loaded, checkpoint_id=ours)
    assert loaded["progress"] == nested["progress"] == {"step": 6}
    assert digest_of(loaded) == digest_of(nested)
    flat = torch.load(file, weights_only=True)
    assert flat["progress.step"] == 6
    for name, tensor in nested["model"].items():
        assert torch.equal(flat[f"model.{name}"], tensor)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_states_travel_between_worlds_storage_and_stock_folders(tmp_path):
    """FSDP2 saved by two is loaded by FSDP's version 1 in three and by FSDP2 in two again from
    memory, then by one unwrapped process from storage alone; DDP by two, then one. A folder of
    torch's own starts a job, and one that a job exports starts another: each begins with the very
    tensors that the one before ended with.
    """
    storage, exported = tmp_path / "pvc", str(tmp_path / "exported")
    some = {"checkpoint_persist_seconds": 0.0, "checkpoint_every": 1}
    runs = Runs(tmp_path)
    with (
        checkpoint_pod.pods(tmp_path / "a", 3, storage=storage, **some) as first,
        checkpoint_pod.pods(tmp_path / "b", 2, **some) as second,
    ):
        runs.add("fsdp", first[:2], "memory")
        runs.add("fsdp1", first, "memory")
        runs.add("fsdp", first[:2], "durable", export=exported)
        runs.add("ddp", second, "memory", stock=exported)
        runs.add("ddp", second[:1], "memory")
        told = runs.told()
        slots = [Arena(pods[0].settings.volume_path / "arena" / "0") for pods in (first, second)]
        kinds = [(slot.sealed()[0].replicated, slot.sealed()[0].pieces) for slot in slots]
    check_tools_export(storage / "demo", pathlib.Path(exported))
    again = Runs(tmp_path)
    with checkpoint_pod.pods(tmp_path / "c", 1, storage=storage, **some) as third:
        again.add("alone", third, "memory")
        told += again.told()
    print([(run["found"], run["resumed"], run["source"]) for run in told])
    assert [run["found"] for run in told] == [0, 2, 4, 0, 8, 6]
    assert [run["resumed"] for run in told] == [0, 2, 4, 6, 8, 6]
    assert [run["source"] for run in told if not run["found"]] == ["none", "none"]
    assert told[-1]["source"] == "storage"
    assert {run["source"] for run in told[:-1] if run["found"]} <= {"memory", "peer"}
    for before, after in ((0, 1), (1, 2), (2, 3), (3, 4), (2, 5)):
        assert told[after]["loaded"] == told[before]["ended"], (before, after)
    assert all(run["ended"] != run["loaded"] for run in told)
    assert kinds == [(False, True), (True, False)]
