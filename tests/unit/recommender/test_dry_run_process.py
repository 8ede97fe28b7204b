# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Real scripts, tried for a few steps in processes of their own."""

from __future__ import annotations

import pathlib

import pytest

from rover_kf import errors
from rover_kf.recommender import job_signature as reading
from rover_kf.recommender.dry_run_process import DryRunSpec, run_dry_run
from rover_kf.recommender.price import PriceTable
from rover_kf.recommender.recommend import Constraints, combine_evidence

pytestmark = pytest.mark.torch

MIB = 1 << 20
SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1))
optimizer = torch.optim.Adam(model.parameters())
samples = TensorDataset(torch.ones(8192, 512), torch.ones(8192, 1))
while True:
    for inputs, wanted in DataLoader(samples, int(sys.argv[1]), shuffle=True):
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not loss.item() >= 0:
            raise SystemExit("no loss")
"""
PARAMETERS = 512 * 2048 + 2048 + 2048 + 1


def job(command, workers=2, **resources):
    container = {"name": "pytorch", "image": "any", "command": list(command)}
    container["resources"] = {"limits": resources}
    worker = {"replicas": workers, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "mlp"},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("script")
    (place / "train.py").write_text(SCRIPT)
    return place


@pytest.fixture(scope="module")
def tried(folder: pathlib.Path):
    return run_dry_run(DryRunSpec(("torchrun", "--nproc-per-node", "2", "train.py", "512"), folder))


def test_steps_state_and_memory_are_measured(tried):
    """Both batches, the model to the byte, Adam's moments, tensors that live, memory, cores."""
    assert [trial.batch for trial in tried.trials] == [256, 512]
    state = tried.state
    assert state.parameters == PARAMETERS
    assert state.parameter_bytes == state.gradient_bytes == 4 * PARAMETERS
    assert 8 * PARAMETERS <= state.optimizer_bytes <= 8 * PARAMETERS + 64
    assert state.optimizer == "Adam"
    assert tried.snapshot_bytes == state.parameter_bytes + state.optimizer_bytes
    assert state.copy_seconds > 0
    half, whole = tried.trials
    for trial in tried.trials:
        assert 0 < trial.step_seconds < 60
        assert 0 < trial.wait_seconds < trial.step_seconds
        assert trial.cores > 0
        assert 100 * MIB < trial.footprint.anonymous < 2048 * MIB
        assert trial.tensor_peak > state.total
        assert state.total - state.gradient_bytes < trial.forward_peak <= trial.tensor_peak
    # A batch's inputs and two layers of activations, of which gradients are made as they go.
    more = whole.forward_peak - half.forward_peak
    assert 256 * 4 * (512 + 2048) <= more <= 256 * 4 * (512 + 4 * 2048)
    assert not tried.failures


def test_a_recommendation_of_a_dry_run(tried):
    """Every size has a source; memory holds two processes; nothing is a guess."""
    facts = reading.from_manifest(job(["torchrun", "--nproc-per-node", "2", "train.py"], cpu="4"))
    prices = PriceTable(cpu=0.1, memory=0.01, currency="EUR")
    found = combine_evidence(
        facts, (), tried, Constraints(accelerator_memory=40.0 * MIB), prices=prices
    )
    sizes = {item.name: item for item in found.quantities}
    assert set(sizes) == {
        *("replicas", "processes", "cpu", "memory", "accelerator_memory", "batch"),
        *("arena", "replica", "storage_bandwidth", "checkpoint_every"),
    }
    own = tried.trials[-1].footprint.anonymous
    assert sizes["memory"].basis == "profile"
    assert sizes["memory"].lower > 0.9 * own
    assert sizes["memory"].upper / sizes["memory"].lower <= 1.6
    assert sizes["arena"].basis == "profile"
    assert sizes["checkpoint_every"].basis == "formula"
    assert sizes["accelerator_memory"].target > sizes["accelerator_memory"].lower > 0
    assert sizes["batch"].target == 1  # the driver's share alone is more than 40 MiB
    assert found.cost.currency == "EUR"
    assert 0 < found.cost.lower <= found.cost.per_hour <= found.cost.upper


def test_shapes_alone_give_the_same_tensors(folder, tried):
    """A fake run computes nothing, and counts within a fifth of what a real one holds."""
    asked = DryRunSpec(("python", "train.py", "512"), folder, fake=True, factors=(0.5,))
    (trial,) = run_dry_run(asked).trials
    assert trial.faked
    assert trial.batch == 256
    assert trial.footprint.total == 0
    assert trial.tensor_peak == pytest.approx(tried.trials[0].tensor_peak, rel=0.2)


def test_a_script_that_fails_is_told(folder):
    """Its own last words, not a traceback of ours."""
    (folder / "broken.py").write_text("import torch\nraise OSError('no data here')\n")
    with pytest.raises(errors.InputError, match="OSError: no data here"):
        run_dry_run(DryRunSpec(("python", "broken.py"), folder, factors=(1.0,), fake=True))


def test_a_batch_that_is_no_number_is_refused(folder):
    """Before anything is started."""
    asked = DryRunSpec(("python", "t.py", "--batch", "many"), folder, batch_option="--batch")
    with pytest.raises(errors.InputError, match="--batch is 'many'"):
        run_dry_run(asked)
