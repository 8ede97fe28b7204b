# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Training with other versions of torch: it survives a kill; checkpoints cross from one to another.

Client and sidecar run on our own Python; only the training processes have the other one, as in a
user's image.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import shutil
import subprocess

import pytest
import yaml

from tests.support.interpreters import Interpreter
from tests.support.jobs.embedded_job import EmbeddedJob, client_in
from tests.support.pods import checkpoint_pod

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]  # a first build downloads gigabytes

ROOT = pathlib.Path(__file__).parents[2]
SAMPLES = ROOT / "manifests" / "samples"
HELD_STATE = pathlib.Path(__file__).parent / "scripts" / "held_state.py"
STEPS = 330


@pytest.fixture
def rover(tmp_path):
    with client_in(tmp_path) as client:
        yield client


@pytest.fixture
def digits(tmp_path):
    """Gives the digits sample's manifest with another Python on the trainer's PATH."""
    shutil.copy(SAMPLES / "digits.py", tmp_path)

    def make(python: Interpreter) -> pathlib.Path:
        documents = list(yaml.safe_load_all((SAMPLES / "digits.yaml").read_text()))
        job = next(item for item in documents if item["kind"] == "PyTorchJob")
        job["metadata"]["annotations"]["rover-kf.io/scaling.mode"] = "off"
        pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        options = ["--steps", str(STEPS), "--samples-per-second", "800"]
        pod["containers"][0]["command"] = ["torchrun", "digits.py", *options]
        path = f"{python.folder}{os.pathsep}{os.defpath}"
        pod["containers"][0]["env"] = [{"name": "PATH", "value": path}]
        manifest = tmp_path / "digits.yaml"
        manifest.write_text(yaml.safe_dump_all(documents))
        return manifest

    return make


@pytest.mark.parametrize("version", ["2.4.1", "2.9.1"])
def test_training_survives_a_kill(rover, digits, python_with, version):
    """Two workers of another torch: SIGKILL of one, resumed from memory, learnt all the same."""
    python = python_with(version)
    job = EmbeddedJob(rover, rover.submit(digits(python)).key)
    before = job.between_seals()
    mapped = job.kill("digits-worker-1")
    assert f"{python.folder.parent}/lib" in mapped, "the training process has another torch"
    job.goes_on(before)
    assert rover.wait(job.key, timeout=300).phase == "Succeeded"
    result = job.result()
    print(f"torch {version}, Python {python.version}: {result}, sealed {before.sealed_step}")
    assert result["restored_from"] == "memory"
    assert result["resumed_step"] >= before.sealed_step > 0
    assert result["world_size"] == 2
    assert result["accuracy"] >= 0.95


@pytest.mark.parametrize(
    ("writer", "reader"),
    [("2.4.1", "own"), ("own", "2.4.1"), ("2.9.1", "own"), ("2.4.1", "2.9.1")],
)
def test_checkpoints_cross_versions(tmp_path, python_with, writer, reader):
    """What one torch saved another restores from storage bit by bit, and trains on."""
    storage = tmp_path / "storage"
    saved = _train(tmp_path / "writer", storage, python_with(writer), seed=1)
    restored = _train(tmp_path / "reader", storage, python_with(reader), seed=2)
    print(f"torch {saved['torch']} to {restored['torch']}: {restored['restored']}")
    assert saved["restored_step"] == 0
    assert saved["torch"] == python_with(writer).torch.partition("+")[0]
    assert restored["torch"] == python_with(reader).torch.partition("+")[0]
    assert (restored["restored_step"], restored["restored_from"]) == (1, "storage")
    assert restored["restored"] == saved["saved"]
    assert restored["saved"] != saved["saved"]
    assert math.isfinite(restored["loss"])
    assert restored["durable"]


def _train(home: pathlib.Path, storage: pathlib.Path, python: Interpreter, *, seed: int) -> dict:
    """Run the script in a new pod, which has no memory of another; what it told."""
    with checkpoint_pod.pods(home, 1, storage=storage) as (pod,):
        done = subprocess.run(
            [python.path, HELD_STATE, str(seed)],
            env={**os.environ, "PYTHONPATH": str(ROOT), **pod.environment()},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])
