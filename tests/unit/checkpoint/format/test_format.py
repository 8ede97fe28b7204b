# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""docs/checkpoint-format.md, read by hand against a checkpoint that two ranks wrote."""

from __future__ import annotations

import json
import pathlib
import struct
import subprocess
import sys

import crc32c
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.pods import checkpoint_pod
from tests.support.waiting import eventually

TRAIN = """
import torch
from rover_kf import Checkpointer
model = torch.nn.Sequential(torch.nn.Linear(300, 100), torch.nn.BatchNorm1d(100))
for number, parameter in enumerate(model.parameters()):
    torch.nn.init.constant_(parameter, number)
with Checkpointer() as checkpointer:
    state = {"model": model, "seed": torch.arange(4), "epoch": (3, float("inf"))}
    checkpointer.restore(state)
    checkpointer.save(7, state)
    assert checkpointer.wait(7, timeout=60)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """What is on storage after two ranks saved step 7."""
    root = tmp_path_factory.mktemp("format")
    with checkpoint_pod.pods(root, 2, storage=root / "pvc", checkpoint_persist_seconds=0.0) as two:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", TRAIN],
                env={
                    "PYTHONPATH": str(pathlib.Path(__file__).parents[4]),
                    **pod.environment(rank=rank, world_size=2),
                },
            )
            for rank, pod in enumerate(two)
        ]
        assert [rank.wait(120) for rank in ranks] == [0, 0]
        found = root / "pvc" / "demo" / "step-000000000007-1"
        eventually((found / "manifest.json").exists)
    return found


@pytest.mark.torch
def test_a_file_is_as_described(folder):
    """Length, header, padding, offsets, metadata: without any of our own code."""
    data = (folder / "rank-00001.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    assert (8 + size) % 128 == 0
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__")
    ends = [0]
    for entry in sorted(header.values(), key=lambda entry: entry["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == ends[-1]
        ends.append(end)
    assert ends[-1] == len(data) - 8 - size
    state = dict(json.loads(metadata["rover.state"])["d"])
    assert state["epoch"] == {"t": [3, {"f": "inf"}]}
    assert state["seed"] == {"T": "seed"}
    kinds = json.loads(metadata["rover.pieces"])
    buffers = {"model.1.running_mean", "model.1.running_var", "model.1.num_batches_tracked"}
    assert set(kinds["own"]) == buffers | {"seed"}
    assert kinds["pieces"] == {"model.0.weight": [[100, 300], [50, 0], 0]}
    begin, end = header["seed"]["data_offsets"]
    assert struct.unpack("<4q", data[8 + size + begin : 8 + size + end]) == (0, 1, 2, 3)


@pytest.mark.torch
def test_safetensors_opens_both_and_they_are_the_whole(folder):
    """Cut rows put together again are the weight; what is not cut is in one file, own in both."""
    files = [load_file(folder / f"rank-0000{rank}.safetensors") for rank in (0, 1)]
    weight = np.concatenate([file["model.0.weight"] for file in files])
    assert weight.shape == (100, 300)
    assert not weight.any()
    for name, value in (("model.0.bias", 1), ("model.1.weight", 2), ("model.1.bias", 3)):
        (holder,) = [file for file in files if name in file]
        np.testing.assert_array_equal(holder[name], np.full(100, value, np.float32))
    assert all("seed" in file and "model.1.running_mean" in file for file in files)


@pytest.mark.torch
def test_the_manifest_is_as_described(folder):
    """Its own checksum, and those of the files."""
    whole = json.loads((folder / "manifest.json").read_text())
    body = json.dumps(whole["manifest"], sort_keys=True, separators=(",", ":")).encode()
    assert crc32c.crc32c(body) == whole["crc32c"]
    manifest = whole["manifest"]
    state = {"round": {"generation": 0, "number": 1}, "step": 7, "save": 1}
    assert (manifest["state"], manifest["origin"]) == (state, state)
    assert (manifest["owner"], manifest["format"]) == ("default/demo", 2)
    assert (manifest["world_size"], manifest["replicated"], manifest["pieces"]) == (2, True, False)
    for rank, file in enumerate(manifest["files"]):
        data = (folder / file["name"]).read_bytes()
        assert (file["rank"], file["length"]) == (rank, len(data))
        assert file["checksum"] == crc32c.crc32c(data)
