# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers that steps of Hugging Face's Trainer have for rover-kf, and which is the last one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainingArguments

from rover_kf.api import names
from rover_kf.trainer.huggingface import Trainer
from rover_kf.trainer.huggingface.trainer import FlashCallback
from tests.support.pods import checkpoint_pod

pytestmark = pytest.mark.torch

ARGUMENTS = SimpleNamespace(train_batch_size=2, gradient_accumulation_steps=1)


class _Told:
    """What the callback tells its checkpointer."""

    every = 50

    def __init__(self, found: int) -> None:
        self.found, self.steps = found, []

    def restore(self, _: object) -> int:
        return self.found

    def step(self, step: int, _: object, *, total_steps: int, **__: object) -> None:
        self.steps.append((step, total_steps))


def _train(callback: FlashCallback, begin: int, end: int) -> None:
    state = SimpleNamespace(global_step=begin, max_steps=10)
    callback.on_train_begin(ARGUMENTS, state, None)
    for step in range(begin + 1, end + 1):
        state.global_step = step
        callback._finished(ARGUMENTS, state)


@pytest.fixture
def callback(monkeypatch) -> FlashCallback:
    made = FlashCallback(SimpleNamespace())
    monkeypatch.setattr(made, "_state", dict)
    made.checkpointer = _Told(0)
    return made


def test_a_training_that_begins_anew_in_its_process_counts_on(callback):
    """As auto_find_batch_size makes it: each step is told, and none has a number again."""
    _train(callback, 0, 3)
    _train(callback, 0, 2)
    assert callback.checkpointer.steps == [(1, 10), (2, 10), (3, 10), (4, 13), (5, 13)]


def test_its_numbers_go_on_where_it_is_resumed(callback):
    """The Trainer's own count is what it was saved with."""
    callback.checkpointer = _Told(5)
    callback._resumes = True
    _train(callback, 2, 4)
    assert callback.checkpointer.steps == [(6, 13), (7, 13)]


def test_a_training_that_goes_on_from_the_trainers_own_checkpoint_keeps_its_numbers(callback):
    """Where rover-kf has nothing to restore."""
    _train(callback, 7, 9)
    assert callback.checkpointer.steps == [(8, 10), (9, 10)]


class _Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = x @ self.weight
        return {"loss": (found - labels).square().mean(), "logits": found}


@pytest.mark.parametrize(("patience", "epochs"), [(1, 2), (9, 3)])
def test_the_last_step_has_its_evaluation_and_the_best_weights_come_after_it(
    tmp_path, monkeypatch, patience, epochs
):
    """Evaluated at each epoch's end, as most trainings are, and stopped early or not."""
    rows = [{"x": row, "labels": row.sum() * 2} for row in torch.eye(4)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "own"),
        num_train_epochs=3,
        per_device_train_batch_size=2,
        learning_rate=0.0,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        monkeypatch.setenv(names.ENV_HOME, str(pod.settings.volume_path))
        monkeypatch.setenv(names.ENV_CHECKPOINT_EVERY, "100")
        trainer = Trainer(
            _Line(),
            arguments,
            train_dataset=rows,
            eval_dataset=rows,
            callbacks=[EarlyStoppingCallback(patience)],
        )
        trainer.train()
        step, measured = pod.measured()
    (*_, judged) = (e["eval_loss"] for e in trainer.state.log_history if "eval_loss" in e)
    assert (step, measured["eval_loss"]) == (2 * epochs, judged)
