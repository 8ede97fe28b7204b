# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Megatron Core's sharded state through the memory: a rank is killed, the others are fewer."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.support.pods.launcher_pods import Job, Pod, kill
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

HERE = pathlib.Path(__file__).parent
TRAINING = (HERE / "scripts" / "megatron_training.py").read_text()
STEPS = 40
KILLED_AFTER = 10
_ENDED = re.compile(r"^ended (\d+) (\w+)$", re.MULTILINE)
_RESUMED = re.compile(r"^resumed (\d+) (\S+) (\w+)$", re.MULTILINE)


def test_a_cut_model_goes_on_bit_by_bit_also_uncut(beside):
    """Two pods hold half of each tensor (tensor parallel, gated layers): after SIGKILL of one rank
    weights and moments become those of a training that nobody disturbed. One pod alone then has the
    very same from storage, whole, and goes on."""
    megatron = beside("megatron")
    undisturbed, _ = _trained(megatron, disturb=False)
    killed, resumed = _trained(megatron, disturb=True)
    print(f"resumed at {[(step, source) for step, source, _ in resumed]}")
    assert killed == undisturbed
    again = [(int(step), source) for step, source, _ in resumed if step != "0"]
    assert again
    assert all(KILLED_AFTER <= step < STEPS and source == "memory" for step, source in again)


def _trained(megatron: str, *, disturb: bool) -> tuple[str, list[tuple[str, str, str]]]:
    """The digest of weights and moments at the end, and what was resumed from."""
    with Job(2, max_nodes=2) as job:
        script = job.script(TRAINING)
        for index in range(2):
            job.add(index, script, str(STEPS), first=megatron)
        job.stepping(0, 1)
        if disturb:
            eventually(lambda: len(job.pods[1].steps()) >= KILLED_AFTER, every=0.01)
            last = job.pods[1].steps()[-1]
            kill(last["pid"])
            job.stepping(0, 1, after=last["at"])
        assert [job.pods[index].wait() for index in range(2)] == [0, 0]
        texts = [job.pods[index].text() for index in range(2)]
        ends = {found for text in texts for found in _ENDED.findall(text)}
        ((_, digest),) = ends
        if disturb:
            _goes_on_alone(megatron, job, digest)
    return digest, [found for text in texts for found in _RESUMED.findall(text)]


def _goes_on_alone(megatron: str, before: Job, digest: str) -> None:
    """One rank holds each tensor whole."""
    stored = {"checkpoint.path": str(before.folder / "storage")}
    with Job(1, max_nodes=1, policy=stored) as job:
        pod: Pod = job.add(0, job.script(TRAINING), str(STEPS + 2), first=megatron)
        assert pod.wait() == 0
        assert _RESUMED.findall(pod.text()) == [(str(STEPS), "storage", digest)]
        ((step, after),) = _ENDED.findall(pod.text())
    assert (step, after != digest) == (str(STEPS + 2), True)
