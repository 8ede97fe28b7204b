# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer is killed and goes on: bit by bit what it would have been."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.support.pods import checkpoint_pod

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "training" / "lightning_training.py"


class Runs:
    """What one process is to fork, in this order."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._planned: list[dict] = []
        self._rounds: dict[int, int] = {}

    def add(self, name: str, pods: list[checkpoint_pod.Pod], *ends: str, **kind: object) -> None:
        """A round for each end, such as "kill 3", and one that ends of itself."""
        for number, end in enumerate(ends if kind.get("ends") is False else (*ends, ""), start=1):
            folder = self._folder / f"{name}-{number}"
            folder.mkdir()
            local = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(checkpoint_pod.free_port())}
            # What Lightning knows torchrun by, and rover-run sets.
            local |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "demo"}
            job = id(pods[0]) if pods else 0
            self._rounds[job] = round_ = self._rounds.get(job, 0) + 1
            ranks = [
                {**pod.environment(rank=rank, world_size=len(pods), round_=round_), **local}
                for rank, pod in enumerate(pods)
            ] or [{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", **local}]
            how, _, at = end.partition(" ")
            planned = {"folder": str(folder), "ranks": ranks, "end": how, "at": int(at or 0)}
            self._planned.append({"plain": False, **planned, **kind})

    def run(self) -> None:
        """All of them."""
        subprocess.run(
            [sys.executable, SCRIPT, json.dumps(self._planned)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=240,
        )

    def told(self, name: str, number: int = 1) -> dict:
        """What rank 0 of a round told."""
        return json.loads((self._folder / f"{name}-{number}" / "result.json").read_text())


def test_a_killed_training_ends_as_one_that_was_not(tmp_path):
    """Parameters, moments, averages, learning rates, loops, losses, evaluations and random numbers,
    those that the data is made of too, are those of a training without our callback that nobody
    killed, though each process begins with another seed: alone, killed in the first epoch, between
    the epochs and in the second, and given an older checkpoint of Lightning's; in a world of two,
    which also leaves to change its size; with data loaders that keep their own place and
    optimization by hand, where only steps that were evaluated are saved. What two have begun, one
    ends, and trains on without saving. What was measured of a step goes with it. What not all could
    be brought back of is refused."""
    runs = Runs(tmp_path)
    some, seldom = {"checkpoint_every": 1}, {"checkpoint_every": 100}
    odd = {"places": True, "manual": True}
    with (
        checkpoint_pod.pods(tmp_path / "one", 1, **some) as one,
        checkpoint_pod.pods(tmp_path / "two", 2, **some) as two,
        checkpoint_pod.pods(tmp_path / "three", 1, **seldom) as three,
        checkpoint_pod.pods(tmp_path / "less", 2, **some) as less,
    ):
        usual = {"averaged": True, "overlap": True, "older": True}
        runs.add("alone", one, "kill 3", "kill 7", "kill 9", **usual)
        runs.add("odd", three, "kill 15", **odd)
        runs.add("both", two, "kill 2", "drain 4")
        runs.add("by-two", less, "kill 5", ends=False)
        runs.add("by-one", less[:1], twice=True)
        runs.add("alone-plain", one, plain=True, averaged=True)
        runs.add("odd-plain", three, plain=True, **odd)
        runs.add("both-plain", two, plain=True)
        runs.add("refused", [], refused=True)
        runs.run()
        measured, last = one[0].measured(), less[0].measured()[0]
    for name, number in (("alone", 4), ("odd", 2), ("both", 3)):
        plain, resumed = runs.told(f"{name}-plain"), runs.told(name, number)
        assert (resumed.pop("source"), plain.pop("source")) == ("memory", "")
        assert resumed == plain
        assert len(set(plain["losses"])) == len(plain["losses"]) > plain["steps"] / 2
        print(name, plain["steps"], "steps,", len(plain["losses"]), "losses, the same bits")
    found = runs.told("alone", 4)["judged"][-1]
    assert (measured[0], measured[1]["judged"]) == tuple(found) == (12, found[1])
    alone = runs.told("by-one")
    # By two an epoch of 8 batches and 3 of the next; by one the other 13 of its 16.
    assert (alone["source"], alone["steps"], len(alone["losses"])) == ("memory", 9, 24)
    assert (alone["losses again"], last) == (24 + 16, 9)


def test_other_ways_to_train_go_on_where_they_were_as_well(tmp_path):
    """As above, by one process. A learning rate that an evaluation lowers at an epoch's end; what
    was measured is there, too, if all was trained before the kill. What has stopped early trains
    no more. What hooks of an epoch's begin have set is set in a process that begins in its middle:
    lists, batches that make a step, an average's learning rate. What was frozen at first, and free
    since, trains on, and so does what was pruned, whose tensors have other names. An order that is
    drawn from a loader's own generator is drawn again, and an ElasticDataLoader has its own, also
    where the job's last epoch is over and another process trains for one more. Where all was
    trained the weights are those that training left, averages that a callback behind ours
    puts into the model at its end."""
    ways = {
        "plateau": ("kill 3", "kill 9", "kill -1"),
        "stopped": ("kill 2", "kill -1"),
        "hooks": ("kill 3", "kill 18"),
        "tuned": ("kill 3", "kill 9", "kill 10"),
        "pruned": ("kill 3", "kill 9", "kill -1"),
        "own order": ("kill 3", "kill 9"),
        "elastic": ("kill 3", "kill 7", "kill 9"),
        "swa": ("kill 2", "kill 4", "kill 9"),
        "averages": ("kill 9", "kill -1"),
    }
    runs = Runs(tmp_path)
    with contextlib.ExitStack() as stack:
        for way, ends in ways.items():
            folder = tmp_path / f"p-{way}"  # short: sockets are below
            pods = stack.enter_context(checkpoint_pod.pods(folder, 1, checkpoint_every=1))
            runs.add(way, pods, *ends, way=way)
            runs.add(f"{way}-plain", pods, way=way, plain=True)
            if way == "elastic":
                runs.add("longer", pods, way=way, epochs=3)
        runs.run()
    batches = len(runs.told("elastic-plain")["losses"]) // 2
    assert len(runs.told("longer")["losses"]) == 3 * batches
    for way, ends in ways.items():
        plain, resumed = runs.told(f"{way}-plain"), runs.told(way, len(ends) + 1)
        assert (resumed.pop("source"), plain.pop("source")) == ("memory", ""), way
        assert resumed == plain, way
