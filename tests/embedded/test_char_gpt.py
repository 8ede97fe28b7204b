# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The character-level GPT as a user starts it: trained by two, killed, resumed, better for it."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import signal

import pytest
import yaml
from tests_support import eventually

from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.api.messages import CoordinatorStatus
from rover_kf.client import RoverClient, settings
from rover_kf.errors import ClusterUnavailable

SAMPLES = pathlib.Path(__file__).parents[2] / "manifests" / "samples"
STEPS = 160


@pytest.fixture
def rover(tmp_path):
    told = dataclasses.replace(
        settings.read(state=tmp_path / "state"), history=f"sqlite:///{tmp_path / 'history.db'}"
    )
    with RoverClient(told=told) as client:
        yield client


@pytest.fixture
def manifest(tmp_path) -> pathlib.Path:
    """The sample's manifest and script, shortened: fewer steps, no limit of the input."""
    shutil.copy(SAMPLES / "char_gpt.py", tmp_path)
    documents = list(yaml.safe_load_all((SAMPLES / "char-gpt.yaml").read_text()))
    job = next(item for item in documents if item["kind"] == "PyTorchJob")
    job["metadata"]["annotations"]["rover-kf.io/scaling.mode"] = "off"
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["command"] = ["torchrun", "char_gpt.py", "--steps", str(STEPS)]
    path = tmp_path / "char-gpt.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def _status(rover: RoverClient, key: JobKey) -> CoordinatorStatus | None:
    assert not rover.get(key).finished, rover.logs(key)
    try:
        return rover.status(key)
    except ClusterUnavailable:
        return None


def _between_seals(status: CoordinatorStatus | None) -> CoordinatorStatus | None:
    if status is None or status.phase != "training" or not status.sealed_step:
        return None
    return status if status.step > status.sealed_step else None


def _goes_on(status: CoordinatorStatus | None, before: CoordinatorStatus) -> bool:
    return status is not None and status.round > before.round and status.step > before.step


def _training_process(rover: RoverClient, key: JobKey, pod: str) -> int:
    return next(
        pid
        for pid in rover.cluster.processes(key, pod, names.PYTORCH_CONTAINER)
        if "/arena/" in pathlib.Path(f"/proc/{pid}/maps").read_text()
    )


@pytest.mark.torch
def test_the_gpt_learns_across_a_kill(rover, manifest):
    """SIGKILL of a rank: all resume from memory at a sealed step; the text is learnt."""
    key = rover.submit(manifest).key
    before = eventually(
        lambda: _between_seals(_status(rover, key)), within=120, what="a step after a seal"
    )
    os.kill(_training_process(rover, key, "char-gpt-worker-1"), signal.SIGKILL)
    eventually(
        lambda: _goes_on(_status(rover, key), before), within=60, what="another round trains"
    )
    assert rover.wait(key, timeout=200).phase == "Succeeded"
    result = json.loads(
        next(line for line in reversed(rover.logs(key).splitlines()) if line.startswith("{"))
    )
    assert result["restored_from"] == "memory"
    assert result["resumed_step"] >= before.sealed_step
    assert (result["steps"], result["world_size"]) == (STEPS, 2)
    assert result["parameters"] > 100_000
    bits = result["bits_per_character"]
    print(f"{bits:.2f} bits a character, resumed at step {result['resumed_step']}")
    # 7 bits are a blind guess, 4.3 what the frequencies of single characters give.
    assert bits < 3.8
