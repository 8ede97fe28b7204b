# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is made ready before the sidecar's word changes nothing, and is used only if it is right."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

import pytest
import torch

from rover_kf import errors
from rover_kf.api.checkpoints import RestoreReply
from rover_kf.checkpoint.arena import arena_allocation
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.restore.prefetch import RestorePrefetch
from rover_kf.trainer.state import flatten as states
from tests.support.pods import trainer_slot
from tests.support.states import identities

pytestmark = pytest.mark.torch

SLOT_BYTES = 1 << 20


class _Slots:
    """A rank's arena, as trainer and sidecar leave it."""

    def __init__(self, home: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.settings = trainer_settings.read({"ROVER_HOME": str(home)})
        arena_allocation.allocate(home / "arena", 0, SLOT_BYTES, max_bytes=4 * SLOT_BYTES)
        self._arena = Arena(home / "arena" / "0")

    def save(self, step: int, state: dict[str, object], *, only: int | None = None) -> RestoreReply:
        """Seal a state; what the sidecar would answer if it chose it."""
        content = trainer_slot.written(states.flatten(state))
        with self._arena.fill(only=only) as filling:
            os.pwrite(filling.descriptor, content, 0)
            filling.seal(
                state=identities.state(step),
                length=len(content),
                rank=0,
                world_size=1,
                replicated=True,
            )
            path = str(filling.path)
        return RestoreReply(
            state=identities.state(step),
            source="memory",
            path=path,
            snapshot_bytes=len(content),
            checksum=0,
        )

    def look(self, live: dict[str, object]) -> RestorePrefetch:
        """What a restoring process does while the sidecar looks for the step, to its end."""
        shards = states.flatten(live).dtensors
        anticipation = self._stack.enter_context(RestorePrefetch(self.settings, live, shards, 2))
        anticipation.prefetch(lambda: False)
        return anticipation


@pytest.fixture
def slots(tmp_path: pathlib.Path) -> Iterator[_Slots]:
    with contextlib.ExitStack() as stack:
        yield _Slots(tmp_path, stack)


def _state(value: float, **more: object) -> dict[str, object]:
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, value)
    optimizer = torch.optim.AdamW(model.parameters(), lr=value)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "note": [value], **more}


def _equal(live: dict[str, object], saved: dict[str, object]) -> bool:
    here, there = states.flatten(live), states.flatten(saved)
    return here.metadata == there.metadata and all(
        torch.equal(here.tensors[name], tensor) for name, tensor in there.tensors.items()
    )


def test_the_newest_step_is_ready_and_nothing_has_changed_yet(slots):
    """Until finish, the live state is the fresh one."""
    slots.save(1, _state(1.0))
    saved = _state(2.0)
    reply = slots.save(2, saved)
    live = _state(9.0)
    before = {name: tensor.clone() for name, tensor in states.flatten(live).tensors.items()}
    anticipation = slots.look(live)
    assert anticipation.is_ready
    after = states.flatten(live).tensors
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert live["note"] == [9.0]
    anticipation.finish(reply)
    assert _equal(live, saved)


def test_another_slot_than_the_one_looked_at(slots):
    """The sidecar goes back a step."""
    older = _state(1.0)
    reply = slots.save(1, older)
    slots.save(2, _state(2.0))
    live = _state(9.0)
    anticipation = slots.look(live)
    assert anticipation.is_ready
    anticipation.finish(reply)
    assert _equal(live, older)


def test_a_slot_that_was_filled_anew_meanwhile(slots):
    """The same slot, step and length, other bytes: the seal's number tells them apart."""
    first = slots.save(2, _state(2.0), only=0)
    live = _state(9.0)
    anticipation = slots.look(live)
    assert anticipation.is_ready
    fetched = _state(3.0)
    reply = slots.save(2, fetched, only=0)
    assert reply == first
    anticipation.finish(reply)
    assert _equal(live, fetched)


def test_what_does_not_fit_is_told_only_if_it_is_the_one(slots):
    """A step of another script in memory, and one that fits, which the sidecar chooses."""
    fits = _state(1.0, extra=torch.ones(2))
    reply = slots.save(1, fits)
    wrong = slots.save(2, _state(2.0))
    live = _state(9.0, extra=torch.zeros(2))
    anticipation = slots.look(live)
    assert not anticipation.is_ready
    with pytest.raises(
        errors.IncompatibleState, match=r"state\['extra'\] is not in the checkpoint"
    ):
        anticipation.finish(wrong)
    anticipation.finish(reply)
    assert _equal(live, fits)


@pytest.mark.parametrize("left", [b"", b"torn"], ids=["no header", "damaged header"])
def test_what_cannot_be_read_is_left_alone(slots, left):
    """Whatever stands in the slot, looking ahead raises nothing."""
    reply = slots.save(1, _state(1.0))
    path = pathlib.Path(reply.path)
    with path.open("r+b") as file:
        file.write(left.ljust(64, b"\xff"))
    assert not slots.look(_state(9.0)).is_ready


def test_an_empty_memory(slots):
    """A new job, or a replaced pod."""
    assert not slots.look(_state(9.0)).is_ready
