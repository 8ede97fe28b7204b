# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Scripts that keep what overlap=True asks of them, and scripts that do not: each is found out."""

from __future__ import annotations

import logging
import mmap
import pathlib
from collections.abc import Iterator

import pytest
import torch

from rover_kf import errors
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.format import snapshot
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.state import flatten as states
from tests.support.pods import checkpoint_pod
from tests.support.waiting import eventually

pytestmark = pytest.mark.torch


class Lookahead(torch.optim.SGD):
    """An optimizer that pulls its parameters to slow ones, outside step()."""

    def sync(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(0.5)


class Script:
    """A training script that saves and then does something before its next step."""

    def __init__(self, pod: checkpoint_pod.Pod, overlap: object = "check") -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.BatchNorm1d(24))
        self.optimizer = Lookahead(self.model.parameters(), lr=0.1, momentum=0.9)
        self.state = {"model": self.model, "optimizer": self.optimizer}
        known = trainer_settings.read(pod.environment())
        self.checkpointer = Checkpointer(every=1, overlap=overlap, settings=known)
        self._arena = Arena(pathlib.Path(pod.settings.volume_path) / "arena" / "0")
        self.steps = self.checkpointer.restore(self.state)

    @property
    def parameters(self) -> list[torch.Tensor]:
        return list(self.model.parameters())

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 16)).square().mean().backward()
        self.optimizer.step()

    def save(self) -> dict[str, bytes]:
        """Save the next step; the tensors' bytes at that moment."""
        self.steps += 1
        tensors = states.flatten(self.state).tensors
        before = {name: t.contiguous().numpy().tobytes() for name, t in tensors.items()}
        self.checkpointer.save(self.steps, self.state)
        return before

    def sealed(self) -> dict[str, bytes]:
        seal = self._arena.sealed()[0]
        assert seal.state.step == self.steps
        with (
            self._arena.pin(seal) as pin,
            mmap.mmap(pin.descriptor, seal.length, prot=mmap.PROT_READ) as raw,
        ):
            data = bytes(raw)
        found = snapshot.read(data)
        return {name: data[place.begin : place.end] for name, place in found.tensors.items()}

    def noticed(self) -> None:
        """Wait until the comparison beside training has seen a change."""
        window = self.checkpointer._stager._check._window
        eventually(lambda: len(window._changed) >= len(self.parameters), what="it is noticed")


def _ema_swap(script: Script) -> None:
    """Averaged weights by pointer, evaluated, and back."""
    kept = [p.data for p in script.parameters]
    for p in script.parameters:
        p.data = p.data * 0.5
    script.noticed()
    for p, before in zip(script.parameters, kept, strict=True):
        p.data = before


def _ema_copy(script: Script) -> None:
    """As diffusers' EMAModel: store, copy_to, restore."""
    kept = [p.detach().clone() for p in script.parameters]
    for p in script.parameters:
        p.data.copy_(p.data * 0.5)
    script.noticed()
    for p, before in zip(script.parameters, kept, strict=True):
        p.data.copy_(before.data)


def _schedule_free(script: Script) -> None:
    """As schedule-free optimizers do in eval()."""
    for p in script.parameters:
        p.data.lerp_(end=torch.full_like(p, 3.0), weight=0.5)


def _lookahead(script: Script) -> None:
    script.optimizer.sync()


def _data_write(script: Script) -> None:
    for p in script.parameters:
        p.data.add_(1.0)


def _numpy_write(script: Script) -> None:
    for p in script.parameters:
        p.detach().numpy()[...] += 1.0


@pytest.fixture
def pod(tmp_path) -> Iterator[checkpoint_pod.Pod]:
    """A pod without storage."""
    with checkpoint_pod.pods(tmp_path, 1) as (started,):
        yield started


@pytest.mark.parametrize(
    "change", [_ema_swap, _ema_copy, _schedule_free, _lookahead, _data_write, _numpy_write]
)
def test_what_overlap_would_have_mixed_is_named(pod, caplog, change):
    """Once for each entry; the snapshot itself is the state at save()."""
    script = Script(pod)
    for _ in range(2):  # from the second save on the copy has the live parameters
        script.train()
        saved = script.save()
    with torch.no_grad():
        change(script)
    assert script.sealed() == saved
    with caplog.at_level(logging.WARNING, logger="rover_kf"):
        script.train()
    (record,) = caplog.records
    assert "overlap=True would have mixed two states in step 2: model.0." in record.message
    assert "and 1 more changed after save()" in record.message
    caplog.clear()
    script.save()
    with torch.no_grad():
        change(script)
    script.train()
    script.checkpointer.close()
    assert not caplog.records


def test_a_script_that_only_its_optimizer_changes_may_overlap(pod, caplog):
    """Running statistics are copied at once, also with overlap: they may change in forward. What
    changes after finish() comes too late for any copy."""
    script = Script(pod)
    for _ in range(3):
        script.train()
        saved = script.save()
        script.model(torch.randn(8, 16))
        assert script.sealed() == saved
    script.checkpointer.finish()
    with torch.no_grad():
        _data_write(script)
    script.train()
    with caplog.at_level(logging.WARNING, logger="rover_kf"):
        script.checkpointer.close()
    (record,) = caplog.records
    assert "3 saves were checked" in record.message
    assert "may use overlap=True" in record.message


def test_another_text_is_rejected(pod):
    """A misspelt check must not become an overlapped copy."""
    with pytest.raises(errors.InputError, match="'chekc'; allowed: False, True, 'check'"):
        Script(pod, "chekc")
