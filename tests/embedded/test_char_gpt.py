# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The character-level GPT as a user starts it: trained by two, killed, resumed, better for it."""

from __future__ import annotations

import pathlib
import shutil

import pytest
import yaml

from tests.support.jobs.embedded_job import EmbeddedJob, client_in

SAMPLES = pathlib.Path(__file__).parents[2] / "manifests" / "samples"
STEPS = 160


@pytest.fixture
def rover(tmp_path):
    with client_in(tmp_path) as client:
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


@pytest.mark.torch
def test_the_gpt_learns_across_a_kill(rover, manifest):
    """SIGKILL of a rank: all resume from memory at a sealed step; the text is learnt."""
    job = EmbeddedJob(rover, rover.submit(manifest).key)
    before = job.between_seals()
    job.kill("char-gpt-worker-1")
    job.goes_on(before)
    assert rover.wait(job.key, timeout=200).phase == "Succeeded"
    result = job.result()
    assert result["restored_from"] == "memory"
    assert result["resumed_step"] >= before.sealed_step
    assert (result["steps"], result["world_size"]) == (STEPS, 2)
    assert result["parameters"] > 100_000
    bits = result["bits_per_character"]
    print(f"{bits:.2f} bits a character, resumed at step {result['resumed_step']}")
    # 7 bits are a blind guess, 4.3 what the frequencies of single characters give.
    assert bits < 3.8
