# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What Lightning's own checkpoints have besides the tensors of model and optimizers.

Loops' progress, callbacks, schedulers, the scaler of mixed precision, the data module, and whatever
hooks put there. Lightning gives and takes it; here it only passes by.
"""

from __future__ import annotations

from typing import Any

import torch

from rover_kf import errors

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


def check(trainer: Any, module: Any) -> None:
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
