# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that a script starts by itself, where the launcher has started it as one rank."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rover_kf.api import names
from tests.support.pods import checkpoint_pod

pytestmark = pytest.mark.torch

BEGIN = """
import multiprocessing, pathlib, sys
import torch
import rover_kf
from rover_kf import errors

KIND, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
forks = multiprocessing.get_context("fork")

class Training:
    def __init__(self, number):
        self.folder = FOLDER / str(number)
        if KIND == "folders":
            self.saver = rover_kf.DirectoryCheckpointer()
        else:
            self.saver = rover_kf.Checkpointer(overlap=KIND == "overlapping")
        weight = torch.nn.Parameter(torch.full((9,), float(number)))
        self.state = {"w": weight, "optimizer": torch.optim.SGD([weight], lr=0.1)}

    def restore(self):
        return self.saver.restore(self.folder if KIND == "folders" else self.state)

    def save(self, step):
        self.folder.mkdir(exist_ok=True)
        (self.folder / "w").write_text(str(self.state["w"]))
        self.saver.save(step, self.folder if KIND == "folders" else self.state)

    def close(self):
        self.saver.close()

def refused(call, *given):
    try:
        return call(*given)
    except errors.CheckpointError as error:
        return str(error)
"""

FOLDS = """
def fold(number):
    training = Training(number)
    print(number, refused(training.restore), flush=True)
    if not number:
        training.save(1)
        training.save(2)
    training.close()

for number in range(2):
    process = forks.Process(target=fold, args=(number,))
    process.start()
    process.join()
"""

RANKS = """
def rank(number, all_restored, saved, tried):
    training = Training(number)
    training.restore()
    all_restored.wait()
    if number:
        saved.wait()
        print(number, refused(training.save, 1), flush=True)
        tried.set()
    else:
        training.save(1)
        training.close() if KIND == "overlapping" else None
        saved.set()
        tried.wait()
        if KIND != "overlapping":
            training.save(2)
        print(number, "saved", flush=True)

events = forks.Barrier(2), forks.Event(), forks.Event()
processes = [forks.Process(target=rank, args=(number, *events)) for number in range(2)]
for process in processes:
    process.start()
for process in processes:
    process.join()
"""

UNLAUNCHED = """
for life in range(3):
    def live():
        training = Training(life)
        if life == 2:
            training.restore()
        print(life, refused(training.save, life + 1), flush=True)
        training.close()
    process = forks.Process(target=live)
    process.start()
    process.join()
"""


@pytest.mark.parametrize("kind", ["overlapping", "at once", "folders"])
@pytest.mark.parametrize(("way", "first"), [(FOLDS, "0 0"), (RANKS, "0 saved")])
def test_a_process_that_saves_as_another_one_is_refused(tmp_path, way, first, kind):
    """They would take each other's states: folds that follow each other, ranks of ``mp.spawn``."""
    with checkpoint_pod.pods(tmp_path / "pods", 1) as (pod,):
        ended = subprocess.run(
            [sys.executable, "-c", BEGIN + way, kind, str(tmp_path)],
            env={**os.environ, **pod.environment()},
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    told = sorted(ended.stdout.splitlines())
    assert told[0] == first, ended
    assert "another process has saved as rank 0" in told[1], ended
    assert "nproc-per-node" in told[1]


@pytest.mark.parametrize("kind", ["overlapping", "at once", "folders"])
def test_an_unlaunched_process_restores_before_it_saves_over_another_life(tmp_path, kind):
    """No launcher counts its lives: two that both save first would give two states one name."""
    with checkpoint_pod.pods(tmp_path / "pods", 1) as (pod,):
        environment = {**os.environ, **pod.environment()}
        del environment[names.ENV_ROUND]
        ended = subprocess.run(
            [sys.executable, "-c", BEGIN + UNLAUNCHED, kind, str(tmp_path)],
            env=environment, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    first, second, third = ended.stdout.splitlines()
    assert (first, third) == ("0 None", "2 None"), ended
    assert "1 an earlier process has saved step 1" in second, ended
    assert "Call restore() before the first save" in second
