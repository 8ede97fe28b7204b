# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own checkpoints through the memory: a rank is killed, the others' files are there."""

from __future__ import annotations

import pathlib
import re
import tempfile
from collections.abc import Iterator

import pytest

from tests.support.pods.launcher_pods import Job, kill
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]  # DeepSpeed compiles a part of itself

HERE = pathlib.Path(__file__).parent
TRAINING = (HERE / "scripts" / "deepspeed_training.py").read_text()
STEPS = 60
KILLED_AFTER = 10
_WEIGHTS = re.compile(r"^weights (\w+)$", re.MULTILINE)
_RESUMED = re.compile(r"^resumed (\d+) (\S+)$", re.MULTILINE)


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield folder


def test_a_killed_rank_of_zero_goes_on_where_it_was(beside, memory):
    """Two pods under ZeRO's stage 1, each with its own files: after SIGKILL the weights become, bit
    by bit, those of a training that nobody disturbed."""
    deepspeed = beside("deepspeed")
    undisturbed, _ = _trained(deepspeed, memory, disturb=False)
    killed, resumed = _trained(deepspeed, memory, disturb=True)
    print(f"resumed at {resumed}")
    assert killed == undisturbed
    again = [(int(step), source) for step, source in resumed if step != "0"]
    assert again
    assert all(KILLED_AFTER <= step < STEPS and source == "memory" for step, source in again)


def _trained(deepspeed: str, memory: str, *, disturb: bool) -> tuple[str, list[tuple[str, str]]]:
    """The digest of the weights at the end, and what was resumed from."""
    with Job(2, max_nodes=2) as job:
        command = (job.script(TRAINING), str(STEPS), memory)
        for index in range(2):
            job.add(index, *command, first=deepspeed)
        job.stepping(0, 1, within=600)
        if disturb:
            eventually(lambda: len(job.pods[1].steps()) >= KILLED_AFTER, every=0.01)
            last = job.pods[1].steps()[-1]
            kill(last["pid"])
            job.stepping(0, 1, after=last["at"])
        assert [job.pods[index].wait(600) for index in range(2)] == [0, 0]
        texts = [job.pods[index].text() for index in range(2)]
    digests = {found for text in texts for found in _WEIGHTS.findall(text)}
    resumed = [pair for text in texts for pair in _RESUMED.findall(text)]
    (digest,) = digests
    return digest, resumed
