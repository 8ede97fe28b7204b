# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Loops over a data set that pages show, as they stand there: killed and begun again they end as
if nothing had happened, against a real sidecar process."""

from __future__ import annotations

import pathlib
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from rover_kf import Checkpointer, ElasticDataLoader
from rover_kf.api import names
from tests.support.pods import checkpoint_pod
from tests.support.training.single_process_mesh import own_group

DOCS = pathlib.Path(__file__).parents[3] / "docs"
EPOCHS, STEPS = 3, 12
"""Of 20 samples, 6 a step: four steps an epoch, the last of two samples."""

pytestmark = pytest.mark.torch


class Killed(Exception):
    """The process is gone in the middle of a step."""


def _loop(page: str, begins: str) -> str:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL
    )
    (found,) = (block for block in blocks if block.startswith(begins))
    return found.replace("batch_size=96", "batch_size=6")


def _life(kill_at: int | None = None) -> dict[str, object]:
    """What a loop takes for granted, as a fresh process has it."""
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
    model = nn.Linear(4, 1)
    steps = iter(range(1, 100))

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if next(steps) == kill_at:
            raise Killed
        return nn.functional.mse_loss(outputs, labels)

    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    given = {"torch": torch, "dist": dist, "dataset": dataset, "epochs": EPOCHS, "loss": loss}
    return {**given, "model": model, "optimizer": optimizer}


def _run(code: str, life: dict[str, object], *, whole: bool) -> dict[str, object]:
    """Run a loop; a page that does not make loader and checkpointer has them from before."""
    if not whole:
        life["loader"] = ElasticDataLoader(life["dataset"], batch_size=6)
        life["checkpointer"] = Checkpointer()
    try:
        exec(code, life)
    finally:
        if "checkpointer" in life:
            life["checkpointer"].close()
    return life


@pytest.fixture
def killed(tmp_path, monkeypatch):
    """Run a loop undisturbed, then killed in the middle of the second epoch and begun again."""

    def run(code: str, *, whole: bool) -> tuple[dict[str, object], dict[str, object]]:
        calm = _run(code, _life(), whole=whole)
        with checkpoint_pod.pods(tmp_path, 1) as (pod,):
            for name, value in {**pod.environment(), names.ENV_CHECKPOINT_EVERY: "1"}.items():
                monkeypatch.setenv(name, value)
            with pytest.raises(Killed):
                _run(code, _life(kill_at=STEPS // 2), whole=whole)
            for name, value in pod.environment(round_=2).items():
                monkeypatch.setenv(name, value)
            return calm, _run(code, _life(), whole=whole)

    return run


def test_the_loop_of_the_quick_start_goes_on_in_the_middle_of_an_epoch(killed):
    """Twelve steps, the weights of an undisturbed run."""
    code = _loop("quickstart.md", "from rover_kf import Checkpointer, ElasticDataLoader")
    calm, after = killed(code, whole=True)
    assert calm["step"] == after["step"] == STEPS
    assert after["checkpointer"].restored_from == "memory"
    assert torch.equal(after["model"].weight, calm["model"].weight)


def test_what_a_loop_adds_up_comes_back(killed, capsys):
    """The mean loss of the epoch in which it was killed is an undisturbed one's, also as told."""
    with own_group():
        calm, after = killed(_loop("data.md", "means = torch.zeros(epochs)"), whole=False)
    assert torch.equal(after["means"], calm["means"])
    assert bool((calm["means"] > 0).all())
    lines = capsys.readouterr().out.splitlines()
    # Three epochs; then the first one before the kill, the other two after it.
    assert lines[3:] == lines[:3]
