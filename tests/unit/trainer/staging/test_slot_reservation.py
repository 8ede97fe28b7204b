# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Training waits for no slot where all of a state is copied beside it."""

from __future__ import annotations

import contextlib
import pathlib

import pytest
import torch

from rover_kf import errors
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.state import flatten as states
from tests.support.pods import checkpoint_pod

pytestmark = pytest.mark.torch


@pytest.fixture
def pod(tmp_path):
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        yield pod


@pytest.fixture
def arena(pod):
    return Arena(pathlib.Path(pod.settings.volume_path) / "arena" / "0")


@pytest.fixture
def checkpointer(pod):
    settings = trainer_settings.read(pod.environment())
    with Checkpointer(settings=settings, overlap=True) as checkpointer:
        yield checkpointer


def _saved_twice(checkpointer: Checkpointer) -> dict[str, object]:
    model = torch.nn.Linear(64, 96)
    state = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2)}
    for step in (1, 2):
        _train(state)
        checkpointer.save(step, state)
        checkpointer.finish()
    return state


def _train(state: dict[str, object]) -> None:
    state["model"](torch.randn(8, 64)).square().mean().backward()
    state["optimizer"].step()


def _steps(arena: Arena) -> list[int]:
    return [seal.state.step for seal in arena.sealed()]


def test_a_save_returns_while_both_slots_are_read(checkpointer, arena):
    """It is sealed once one of them is let go of, as the state was at the call."""
    state = _saved_twice(checkpointer)
    model = states.flatten(state).tensors["model.weight"].clone()
    with contextlib.ExitStack() as pins:
        for seal in arena.sealed():
            pins.enter_context(arena.pin(seal))
        checkpointer.save(3, state)
        assert not checkpointer._stager._overlap.is_done
        assert _steps(arena) == [2, 1]
    _train(state)
    checkpointer.finish()
    assert _steps(arena)[0] == 3
    fresh = torch.nn.Linear(64, 96)
    other = {"model": fresh, "optimizer": torch.optim.AdamW(fresh.parameters(), lr=1e-2)}
    assert checkpointer.restore(other) == 3
    assert torch.equal(fresh.weight, model)


def test_without_a_slot_the_save_is_an_error_that_is_told_once(checkpointer, arena, monkeypatch):
    """And what was sealed before stays; each of the copy's threads is told, none asks again."""
    state = _saved_twice(checkpointer)
    asked = []

    def refuse(_):
        asked.append(1)
        raise errors.CheckpointError("both slots have been read for 60 s")

    with monkeypatch.context() as patched:
        patched.setattr(Arena, "fill", refuse)
        checkpointer.save(3, state)
        with pytest.raises(errors.CheckpointError, match="both slots have been read"):
            checkpointer.finish()
    assert asked == [1]
    assert _steps(arena) == [2, 1]
    checkpointer.save(4, state)
    checkpointer.finish()
    assert _steps(arena)[0] == 4
