# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A tensor of more bytes, and more elements, than 32 bits count: through memory and storage."""

from __future__ import annotations

import mmap
import shutil

import pytest
import torch

from rover_kf.trainer import settings
from rover_kf.trainer.checkpointer import Checkpointer
from tests.support.pods import checkpoint_pod
from tests.support.pods.checkpoint_world import in_memory

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

_ELEMENTS = (1 << 31) + 4097


def _zeros() -> torch.Tensor:
    """In pages that cost nothing until they are written."""
    return torch.frombuffer(mmap.mmap(-1, _ELEMENTS), dtype=torch.int8)


def _marked() -> torch.Tensor:
    """Zeros but for some elements at both sides of every boundary that a number of 31 or 32 bits
    could be cut at."""
    values = _zeros()
    for place in (0, (1 << 30) - 1, 1 << 30, (1 << 31) - 1, 1 << 31, _ELEMENTS - 1):
        values[place] = place % 100 + 1
    return values


def test_a_tensor_of_more_than_two_gibibytes(tmp_path):
    """Saved, persisted and, with the memory lost, restored: from storage into a slot, from there
    into the live tensor."""
    saved = {"large": _marked(), "small": torch.arange(3)}
    with (
        in_memory() as memory,
        checkpoint_pod.pods(memory, 1, storage=tmp_path, arena_bytes=6 << 30) as (pod,),
    ):
        for round_, source in ((1, "none"), (2, "storage")):
            given = settings.read(pod.environment(round_=round_))
            with Checkpointer(settings=given) as checkpointer:
                live: dict[str, object] = {"large": _zeros()}
                step = checkpointer.restore(live)
                assert (step, checkpointer.restored_from) == (round_ > 1, source)
                if not step:
                    checkpointer.save(1, saved)
                    assert checkpointer.wait(1, "durable", timeout=120)
                else:
                    assert torch.equal(live["large"], saved["large"])
                    assert torch.equal(live["small"], saved["small"])
            if not step:
                pod.kill()
                shutil.rmtree(pod.settings.volume_path)
                pod.start()
