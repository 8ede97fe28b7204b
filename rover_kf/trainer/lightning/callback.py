# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in memory for Lightning's Trainer: one callback.

::

    from rover_kf.trainer.lightning import FlashCheckpoint

    trainer = lightning.Trainer(callbacks=[FlashCheckpoint()])

``fit()`` goes on where the job was, in the middle of an epoch: model, optimizers, schedulers,
loops, other callbacks, random generators, and the data's next batch. Outside rover-kf the callback
does nothing but say so. Lightning is imported here alone, and only by who has it.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Collection
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning
from torch.nn.utils import prune

from rover_kf import errors
from rover_kf.checkpoint.format import metrics
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.lightning.data_order import DataOrder
from rover_kf.trainer.rng_state import DeferredGenerators
from rover_kf.trainer.state.compiled_modules import strip_compile_prefix

_TENSORS = "state_dict"
_METRICS = "callback_metrics"
_STOPS = "should_stop"
_FROZEN = "frozen"
_LEFT_OUT = (
    "optimizer_states",  # saved with the optimizers themselves
    *("hyper_parameters", "hparams_name", "hparams_type"),  # the script has them
    *("datamodule_hyper_parameters", "datamodule_hparams_name", "datamodule_hparams_type"),
)


class FitState:
    """An entry of a Checkpointer's state with Lightning's own state, read at a save."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """All of it, as Lightning names it; tensors only where hooks have made them."""
        trainer = self._trainer
        found: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(  # noqa: SLF001 - as ModelCheckpoint reaches it
            weights_only=False
        )
        for key in _LEFT_OUT:
            found.pop(key, None)
        own = set(map(_memory_key, self._parameters().values()))
        made = found.pop(_TENSORS)
        found[_TENSORS] = {
            name: item for name, item in made.items() if _memory_key(item) not in own
        }
        parameters = trainer.lightning_module.named_parameters()
        found[_FROZEN] = [name for name, one in parameters if not one.requires_grad]
        found[_STOPS] = trainer.should_stop
        found[_METRICS] = {name: value.item() for name, value in self._metrics().items()}
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give all of it back to Lightning; model and optimizers are loaded already."""
        trainer = self._trainer
        found = {**state_dict, _TENSORS: {**self._parameters(), **state_dict[_TENSORS]}}
        trainer.lightning_module.on_load_checkpoint(found)
        connector = trainer._checkpoint_connector  # noqa: SLF001 - has no public door
        connector._loaded_checkpoint = found  # noqa: SLF001
        connector.restore_datamodule()
        connector.restore_callbacks()
        connector.restore_precision_plugin_state()
        connector.restore_loops()
        connector.restore_lr_schedulers()
        if _METRICS in state_dict:  # versions before this one have saved none of these
            self._resume(state_dict)
        # What ckpt_path has brought must not go over it.
        connector._loaded_checkpoint = {}  # noqa: SLF001

    def _resume(self, kept: dict[str, Any]) -> None:
        trainer, frozen = self._trainer, frozenset(kept[_FROZEN])
        for name, parameter in trainer.lightning_module.named_parameters():
            parameter.requires_grad_(name not in frozen)
        trainer.should_stop = kept[_STOPS]
        measured = kept[_METRICS].items()
        self._metrics().update({name: torch.tensor(value) for name, value in measured})

    def _metrics(self) -> dict[str, torch.Tensor]:
        """What was logged last, as callbacks and schedules see it."""
        found: dict[str, torch.Tensor] = self._trainer._logger_connector._callback_metrics  # noqa: SLF001 - the property computes anew
        return found

    def _parameters(self) -> dict[str, Any]:
        found: dict[str, Any] = self._trainer.lightning_module.state_dict()
        return found


def _memory_key(item: object) -> int:
    """Where a tensor is in memory; else which object it is."""
    return item.data_ptr() if isinstance(item, torch.Tensor) else id(item)


def check_restorable(trainer: Any, module: Any) -> None:
    """Check that all of a training can be restored.

    Raises:
        UnsupportedState: it cannot; the message says what to do.
    """
    if trainer.strategy.restore_checkpoint_after_setup:
        raise errors.UnsupportedState(
            f"{type(trainer.strategy).__name__} gathers its state for a checkpoint; train with ddp "
            "or on one device, or save its own checkpoints by rover_kf.DirectoryCheckpointer"
        )
    if not module.strict_loading:
        raise errors.UnsupportedState(
            f"{type(module).__name__} sets strict_loading=False, so parts of it may be missing in "
            "its state; keep all of them in state_dict() and leave strict_loading as it is"
        )


_log = logging.getLogger("rover_kf")


class FlashCheckpoint(Callback):
    """Restores before the first batch and saves after each optimizer step that is due.

    A step is saved when the next batch is about to be asked for: then its logs, its evaluation and
    the end of its epoch are behind it. Lightning has no hook there, so the loop over batches is
    asked to pass by.

    Args:
        every: optimizer steps between two saves; the job's own (``checkpoint.every``) if not given.
        overlap: as for Checkpointer; callbacks that change parameters do it around evaluations,
            which wait for the copy.

    Raises:
        InputError: ``every`` is below 1.
    """

    def __init__(
        self, *, every: int | None = None, overlap: bool | Literal["check"] = False
    ) -> None:
        self.checkpointer = Checkpointer(every=every, overlap=overlap)
        """Can be waited for, and knows where a state came from."""
        self._generators, self._order = DeferredGenerators(), DataOrder()
        self._done = 0
        self._total: int | None = None
        self._measured: tuple[int, dict[str, float]] = (0, {})
        self._resumes = self._over = False
        self._kept: dict[str, Any] = {}
        self._names: Collection[str] = ()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """See whether there is a state, and set the generators that its data came from.

        Raises:
            UnsupportedState: of this strategy or module not all could be brought back.
            CheckpointError: the state was saved by another kind of script.
        """
        if stage != "fit":
            return
        check_restorable(trainer, pl_module)
        self._over = self._over or self.checkpointer.is_late  # of another Trainer
        if self._over:
            _log.warning("rover-kf: a second fit() in one process begins anew and is not saved")
            return
        found: Any = self.checkpointer.peek()
        if found is not None and not isinstance(found.get("data"), dict):
            raise errors.IncompatibleState(
                f"the job's state has {sorted(map(str, found))} and no data's place; it was saved "
                "by another script. Start this one as another job"
            )
        self._resumes = found is not None
        if found is not None:
            self._kept, self._names = found["fit"]["callbacks"], found["model"].keys()
        self._order.begin(found["data"] if found is not None else None)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring back what ``setup`` has found, over what ``ckpt_path`` has brought."""
        if self._over:
            return
        if self._resumes:
            _unfreeze(trainer, self._kept)
            _prune(pl_module, self._names)
        state = self._tensors(trainer, pl_module)
        self.checkpointer.restore(state)
        if self._resumes:
            FitState(trainer).load_state_dict(state["fit"])
            trainer.num_sanity_val_steps = 0  # it would drop what was measured

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Get in between the loop over batches and its data, and behind the end of training."""
        if self._over:
            return
        self._done = trainer.global_step
        steps = trainer.estimated_stepping_batches if pl_module.automatic_optimization else -1
        self._total = int(steps) if 0 < steps < math.inf else None
        loop: Any = trainer.fit_loop.epoch_loop
        self._order.check(trainer)
        loop.reset = functools.partial(self._reset, trainer, loop.reset)
        loop.on_run_start = functools.partial(self._on_run_start, trainer, loop.on_run_start)
        loop.advance = functools.partial(self._advance, trainer, loop.advance)
        epochs: Any = trainer.fit_loop
        epochs.on_run_end = functools.partial(self._on_run_end, trainer, epochs.on_run_end)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Have the copy done, since some callbacks evaluate other parameters (averages)."""
        del trainer, pl_module
        self.checkpointer.finish()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what was measured of this step."""
        del pl_module
        if not trainer.sanity_checking:
            found = {name: value.item() for name, value in trainer.callback_metrics.items()}
            self._measured = (trainer.global_step, metrics.numeric_only(found))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report what is left, also where all was trained already and ``fit()`` only restored."""
        del trainer, pl_module
        self._generators.apply()  # if no batch has followed the restore
        self._over = True
        self.checkpointer.close()

    def _reset(self, trainer: Trainer, reset: Callable[[], None]) -> None:
        """At an epoch's begin, or where the job was in one: that state is whole as it is."""
        if self._resumes:
            trainer.fit_loop.epoch_loop.restarting = False
        if not (self._resumes and trainer.fit_loop.restarted_mid_epoch):
            reset()
            return
        _begin_epoch(trainer)

    def _on_run_start(
        self, trainer: Trainer, on_run_start: Callable[[Any], None], fetcher: Any
    ) -> None:
        """After that: the epoch's data begins, or goes on."""
        if not self._resumes:
            self._order.draw(trainer, functools.partial(on_run_start, fetcher))
            return
        self._resumes = False
        on_run_start(fetcher)
        self._order.resume(trainer, fetcher)
        # Else no schedule that follows a metric is told of this epoch: metrics are there, too.
        trainer.fit_loop._restarting = False  # noqa: SLF001 - as the loop does after an epoch

    def _advance(self, trainer: Trainer, advance: Callable[[Any], None], fetcher: Any) -> None:
        """One batch; before it is asked for, save the step before, if it is due."""
        self._generators.apply()
        self._finished(trainer)
        advance(fetcher)

    def _on_run_end(self, trainer: Trainer, on_run_end: Callable[[], None]) -> None:
        """Save the last step, which no batch follows, as the hooks of the end leave it.

        Some put averages into the model, which nobody does again where all was trained.
        """
        on_run_end()
        fit: Any = trainer.fit_loop
        loop = fit.epoch_loop
        del loop.reset, loop.on_run_start, loop.advance, fit.on_run_end
        self._order.end(trainer)
        self._finished(trainer)

    def _finished(self, trainer: Trainer) -> None:
        step = trainer.global_step
        if step <= self._done:
            return
        self._done = step
        state = {
            **self._tensors(trainer, trainer.lightning_module),
            "fit": FitState(trainer),
            "data": self._order.state(),
        }
        metrics = self._measured[1] if self._measured[0] == step else {}
        if metrics and not self.checkpointer.is_due(step) and step != self._total:
            self.checkpointer.save(step, state, metrics=metrics)  # it would not be due
        self.checkpointer.step(
            step,
            state,
            samples=self._order.samples(trainer),
            total_steps=self._total,
            metrics=metrics,
        )

    def _tensors(self, trainer: Trainer, module: LightningModule) -> dict[str, Any]:
        optimizers = {f"optimizer.{i}": found for i, found in enumerate(trainer.optimizers)}
        return {"model": module, **optimizers, "generators": self._generators}


def _unfreeze(trainer: Trainer, kept: dict[str, Any]) -> None:
    """Give optimizers the groups of parameters that fine-tuning callbacks have added."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined] # every Trainer has them
        if isinstance(callback, BaseFinetuning) and callback.state_key in kept:
            callback.load_state_dict(kept[callback.state_key])
            callback.on_fit_start(trainer, trainer.lightning_module)


def _prune(module: LightningModule, names: Collection[str]) -> None:
    """Give a fresh module the masks of parameters that hooks have pruned (``ModelPruning``)."""
    for path, part in module.named_modules():
        for name in [*part._parameters]:  # noqa: SLF001 - what it has itself, and nobody below it
            place = ".".join(filter(None, (strip_compile_prefix(path), name)))
            if {f"{place}_orig", f"{place}_mask"}.issubset(names):
                prune.identity(part, name)  # type: ignore[no-untyped-call] # torch's


def _begin_epoch(trainer: Trainer) -> None:
    """Call the hooks of an epoch's begin in a process that goes on in its middle.

    They set what no state has: how many batches make a step, an average's own learning rate, lists
    that the script fills.
    """
    module: Any = trainer.lightning_module
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined] # every Trainer has them
    module._current_fx_name = "on_train_epoch_start"  # noqa: SLF001 - what they log is asked for it
    for callback in callbacks:
        if not isinstance(callback, BaseFinetuning):  # it would change learning rates again
            callback.on_train_epoch_start(trainer, module)
    module.on_train_epoch_start()
    module._current_fx_name = None  # noqa: SLF001
