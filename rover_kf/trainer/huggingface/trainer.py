# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The Trainer of Hugging Face transformers, with checkpoints in memory: one line of a script.

::

    from rover_kf.trainer.huggingface import Trainer  # in place of transformers'

``train()`` goes on where the job was: model, optimizer, learning rates, random generators, logs,
and the data's next batch. Trainers that derive from transformers' (TRL) take it as a base::

    class MyTrainer(rover_kf.trainer.huggingface.Trainer, trl.SFTTrainer): ...

The data's place is found by Trainer's own resume, which reads it from a folder: one with nothing
but ``trainer_state.json``. Outside rover-kf it is transformers' Trainer. The one module of the
training process that imports more than the standard library and torch.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import transformers
from transformers.trainer_callback import ExportableState, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from rover_kf import errors
from rover_kf.checkpoint.format import metrics as format_metrics
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.rng_state import EpochGenerators


def state_json(state: Any, exportable: Iterable[Any]) -> str:
    """Return trainer_state.json's text with the ``state()`` of callbacks and others."""
    kept: dict[str, Any] = {}
    for found in exportable:
        name = type(found).__name__
        known = kept.get(name)
        if known is None:
            kept[name] = found.state()
        else:
            kept[name] = [*(known if isinstance(known, list) else [known]), found.state()]
    plain = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return json.dumps({**plain, "stateful_callbacks": kept}, sort_keys=True, default=_plain)


def _plain(value: object) -> object:
    """What a script has logged, such as tensors and NumPy's numbers, as far as JSON has it."""
    tolist = getattr(value, "tolist", None)
    return tolist() if tolist is not None else str(value)


def stream_position(text: str, accumulated: int) -> tuple[int, int]:
    """Return the position in data without a length: whole passes and batches of the next.

    ``accumulated`` are the batches of a step.
    """
    state = json.loads(text)
    passes = int(state["epoch"])
    # Trainer takes the whole training for the length of a pass.
    return passes, round((state["epoch"] - passes) * state["max_steps"] * accumulated)


def restore_callbacks(saved: Mapping[str, Any], callbacks: Iterable[Any]) -> None:
    """Set what callbacks had counted, by the names of their classes."""
    by_name: dict[str, list[Any]] = {}
    for callback in callbacks:
        by_name.setdefault(type(callback).__name__, []).append(callback)
    for name, told in saved.items():
        states = told if isinstance(told, list) else [told]
        for callback, one in zip(by_name.get(name, ()), states, strict=False):
            for attribute, value in one.get("attributes", {}).items():
                setattr(callback, attribute, value)


def unlogged_loss(trainer: Any) -> list[float]:
    """Losses that Trainer has added up since it last logged their mean, and the step of that."""
    total = getattr(trainer, "_tr_loss", None)
    return [] if total is None else [float(total.item()), trainer._globalstep_last_logged]  # noqa: SLF001 - it has no other door


def resume_metrics(trainer: Any, saved: list[float]) -> None:
    """Make the next mean cover all steps since the last log, as without a restart.

    The trainer has begun, and counts from the step that it resumes from.
    """
    if saved:
        total, since = saved
        trainer._tr_loss += total - trainer._tr_loss.item()  # noqa: SLF001 - as above
        trainer._globalstep_last_logged = int(since)  # noqa: SLF001
        trainer._total_loss_scalar -= total  # noqa: SLF001 - the mean of this process's own steps


_log = logging.getLogger("rover_kf")

_STATE_FILE = "trainer_state.json"


class Trainer(transformers.Trainer):
    """transformers' Trainer that saves to memory and goes on from there; same arguments."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.flash = FlashCallback(self)
        """Saves and restores; its ``checkpointer`` can be waited for."""
        self.add_callback(self.flash)
        self._position: str | None = None
        self._stream_position = 0, 0

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,  # noqa: FBT001 - transformers' own
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As transformers' own; a state that rover-kf has goes before ``resume_from_checkpoint``.

        Raises:
            UnsupportedState: DeepSpeed or the first FSDP holds parameters and optimizer.
            CheckpointError: there is a state that this training cannot take.
        """
        _check(self)
        position = self.flash.position()
        self._position = None
        if position is None:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        with tempfile.TemporaryDirectory(prefix="rover-position-") as folder:
            (pathlib.Path(folder) / _STATE_FILE).write_text(position)
            self._position = folder
            accumulated = self.args.gradient_accumulation_steps
            self._stream_position = stream_position(position, accumulated)
            return super().train(folder, *args, **kwargs)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: torch.nn.Module | None = None
    ) -> None:
        if resume_from_checkpoint != self._position:  # else FlashCallback loads it
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _init_training_state(
        self, max_steps: int, steps_an_epoch: int, epochs: int, *rest: Any
    ) -> tuple[int, int]:
        found = super()._init_training_state(max_steps, steps_an_epoch, epochs, *rest)
        if self._position is None:
            return found
        if self.state.global_step >= max_steps:
            return epochs, 0  # Trainer's own resume would train a step more
        if epochs == sys.maxsize and not self.args.ignore_data_skip:
            return self._stream_position  # it would look for it in the first pass
        return found

    def _load_callback_state(self) -> None:
        super()._load_callback_state()
        if self._position is not None and not self.args.restore_callback_states_from_checkpoint:
            kept: Any = self.state.stateful_callbacks
            restore_callbacks(kept, self.callback_handler.callbacks)

    def _load_best_model(self) -> None:
        self.flash.end(self.args, self.state)
        super()._load_best_model()


class FlashCallback(transformers.TrainerCallback):
    """A callback that restores before the first step and saves after each due one.

    A step is saved when the next one begins: then logging and evaluation, which use random numbers
    and change the logs, are behind it.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.checkpointer = Checkpointer()
        self._generators = EpochGenerators()
        self._done, self._ahead = 0, 0
        self._metrics: tuple[int, dict[str, float]] = (0, {})
        self._resumes = self._over = False

    def position(self) -> str | None:
        """Where the training goes on, as trainer_state.json has it; None: it begins.

        Raises:
            CheckpointError: the state was saved by another kind of script.
        """
        self._over = self._over or self.checkpointer.is_late  # of another Trainer
        if self._over:
            _log.warning("rover-kf: a second train() in one process begins anew and is not saved")
            return None
        found = self.checkpointer.peek()
        if found is None:
            return None
        text = found.get("trainer")
        if not isinstance(text, str):
            raise errors.IncompatibleState(
                f"the job's state has {sorted(map(str, found))} and no Trainer's; it was saved by "
                "another script. Start this one as another job"
            )
        self._resumes = True
        return text

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Load what ``position`` has announced."""
        del args, control
        if self._resumes:
            self._resumes = False
            found: dict[str, Any] = self._state()
            self._done = self.checkpointer.restore(found)
            resume_metrics(self._trainer, found.get("unlogged", []))
            self._ahead = self._done - state.global_step
        else:  # anew, perhaps with smaller batches (auto_find_batch_size); numbers never go back
            self._ahead = max(self._done - state.global_step, 0)
            self._done = self._ahead + state.global_step

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save the step before, if it is due; after a restore, set the random generators."""
        del control
        self._generators.apply()
        self._finished(args, state)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Keep what was measured of this step; several data sets are told one after the other."""
        del args, control
        step, before = self._metrics
        known = before if step == state.global_step else {}
        self._metrics = (state.global_step, {**known, **format_metrics.numeric_only(metrics)})

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Have the order of an epoch that the job was in drawn as it was."""
        del args, state, control
        self._generators.begin()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save the last step, unless its evaluation follows."""
        self._generators.end()
        stops = control.should_training_stop or state.global_step >= state.max_steps
        if stops and not control.should_evaluate:
            self.end(args, state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save the last step, if nothing before has, and report what is left."""
        del control
        self._generators.apply()  # if no step has followed the restore
        self.end(args, state)
        self._over = True
        self.checkpointer.close()

    def end(self, args: TrainingArguments, state: TrainerState) -> None:
        """Save the step that was the last one, whether or not the training was to go on."""
        self._finished(args, state, last=state.global_step)

    def _finished(
        self, args: TrainingArguments, state: TrainerState, last: int | None = None
    ) -> None:
        step = state.global_step + self._ahead
        last = (state.max_steps if last is None else last) + self._ahead
        if self._over or step <= self._done:
            return
        self._done = step
        of, told = self._metrics
        found, metrics = self._state(), dict(told if of == state.global_step else {})
        if metrics and step % self.checkpointer.every and step < last:
            self.checkpointer.save(step, found, metrics=metrics)  # it would not be due
        self.checkpointer.step(
            step,
            found,
            samples=args.train_batch_size * args.gradient_accumulation_steps,
            total_steps=last,
            metrics=metrics,
        )

    def _state(self) -> dict[str, object]:
        trainer = self._trainer
        kept = (*trainer.callback_handler.callbacks, trainer.control)
        exportable = [one for one in kept if isinstance(one, ExportableState)]
        found = {
            "trainer": state_json(trainer.state, exportable),
            "unlogged": unlogged_loss(trainer),
            "model": trainer.model,
            # Accelerate's wrapper has a state of its own class; the optimizer inside has all of it.
            "optimizer": getattr(trainer.optimizer, "optimizer", trainer.optimizer),
            "schedule": trainer.lr_scheduler,
            "generators": self._generators,
        }
        scaler = getattr(trainer.accelerator, "scaler", None)
        return found if scaler is None else {**found, "scaler": scaler}


def _check(trainer: Trainer) -> None:
    if trainer.is_deepspeed_enabled:
        raise errors.UnsupportedState(
            "DeepSpeed keeps optimizer state that Trainer cannot name; use transformers' Trainer, "
            "and rover_kf.DirectoryCheckpointer on the folders that it saves"
        )
    if trainer.is_fsdp_enabled and not trainer.accelerator.is_fsdp2:
        raise errors.UnsupportedState(
            "FSDP of version 1 keeps flat parts that belong to no parameter; set version 2 in "
            "fsdp_config"
        )
