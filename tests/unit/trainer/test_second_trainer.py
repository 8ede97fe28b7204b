# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Scripts that make several Trainers, one after the other: stages, folds, trials."""

from __future__ import annotations

import lightning.pytorch as lightning
import pytest
import torch
import transformers
from torch.utils.data import DataLoader

from rover_kf.api import names
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.trainer.huggingface import Trainer
from rover_kf.trainer.lightning import FlashCheckpoint
from tests.support.pods import checkpoint_pod

pytestmark = pytest.mark.torch

ROWS = [{"x": row, "labels": row.sum()} for row in torch.eye(4)]


class _Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (x @ self.weight - labels).square().mean()}


class _Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.line = _Line()

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.line(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _by_transformers(folder: str, steps: int) -> torch.Tensor:
    arguments = transformers.TrainingArguments(
        output_dir=folder, max_steps=steps, report_to=[], disable_tqdm=True, use_cpu=True,
        learning_rate=0.1, save_strategy="no",
    )  # fmt: skip
    model = _Line()
    Trainer(model, arguments, train_dataset=ROWS).train()
    return model.weight.detach()


def _by_lightning(folder: str, steps: int) -> torch.Tensor:
    module = _Module()
    trainer = lightning.Trainer(
        max_steps=steps, default_root_dir=folder, callbacks=[FlashCheckpoint()], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu",
    )  # fmt: skip
    trainer.fit(module, DataLoader(ROWS, batch_size=2))
    return module.line.weight.detach()


@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize("train", [_by_transformers, _by_lightning])
def test_a_second_trainer_in_a_process_begins_anew_and_is_not_saved(tmp_path, monkeypatch, train):
    """Also where the first one had been saved at its end, as after a restart."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        monkeypatch.setenv(names.ENV_HOME, str(pod.settings.volume_path))
        seen = []
        for round_ in (1, 2):
            monkeypatch.setenv(names.ENV_ROUND, str(round_))
            seen.append([train(str(tmp_path / "own"), steps) for steps in (4, 2)])
            assert (
                max(
                    seal.state.step for seal in Arena(pod.settings.volume_path / "arena/0").sealed()
                )
                == 4
            )
    (first, second), (first_again, second_again) = seen
    assert torch.equal(first, first_again)
    assert torch.equal(second, second_again)
    assert not torch.equal(first, second)
