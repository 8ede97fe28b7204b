# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A volume that is full for a moment: what could not be written leaves no room taken."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator

import checkpoint_pod
import pytest
from bare_trainer import Trainer
from tests_support import eventually

from rover_kf.api import names
from rover_kf.checkpoint import snapshot
from rover_kf.checkpoint.directory_storage import DirectoryStorage

VOLUME, STATE, OTHERS = 20 << 20, 8 << 20, 5 << 20
"""With one checkpoint and what others have there, another one does not fit; without theirs it does,
and half of one besides does not."""


def _state(step: int) -> bytes:
    layout = snapshot.plan([snapshot.Entry("content", "U8", (STATE,), 1)], {})
    return snapshot.header(layout, {}) + bytes([step]) * STATE


@contextlib.contextmanager
def _volume(folder: pathlib.Path) -> Iterator[None]:
    if os.geteuid() != 0:
        reason = "not root: a volume that is soon full cannot be mounted"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={VOLUME}", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_volume_that_has_room_again_is_used(tmp_path):
    """Somebody's file fills it, a persist is refused, the file goes: the next step is durable."""
    volume = tmp_path / "volume"
    with (
        _volume(volume),
        checkpoint_pod.pods(tmp_path, 1, storage=volume, checkpoint_keep=1) as (pod,),
    ):
        trainer = Trainer(pod)
        trainer.save(1, _state(1))
        assert trainer.wait(1, "durable").done
        (volume / "of others").write_bytes(bytes(OTHERS))
        trainer.save(2, _state(2))
        eventually(lambda: _refusals(pod), what="step 2 is refused")
        assert not list((volume / "demo").rglob("*.part"))
        (volume / "of others").unlink()
        trainer.save(3, _state(3))
        assert trainer.wait(3, "durable").done
        stored = DirectoryStorage(volume / "demo")
        alone = lambda: [folder.step for folder in stored.folders()] == [3]  # noqa: E731 - a condition
        eventually(alone, what="the other steps' folders are gone")
        assert stored.verify(stored.folders()[0]).step == 3


def _refusals(pod: checkpoint_pod.Pod) -> list[str]:
    told = pod.told(names.EVENT_CHECKPOINT_WARNING)
    return [message for message in told if "No space left" in message]
