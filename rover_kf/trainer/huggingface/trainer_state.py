# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The state of transformers' Trainer as the text that Trainer writes into its own checkpoints."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any


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
