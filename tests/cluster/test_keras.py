# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Keras' Model.fit on two mirrored workers of a TFJob on a real cluster, by lines added."""

from __future__ import annotations

import pathlib
import re
import signal

import pytest
from testcluster import jobs, tfjobs
from testcluster.jobs import RunningJob
from testcluster.objects import apply

from rover_kf.api import names
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(1500), pytest.mark.usefixtures("controller")]

PATIENCE = 300.0
EPOCHS, BATCHES, EVERY = 6, 400, 20
ADDED = {
    "import tensorflow as tf\n": "from rover_kf.trainer.keras import flash_checkpoint\n",
    "    callbacks=[\n": "        flash_checkpoint(),\n",
}
"""Lines for a script that knows nothing of rover-kf, each by the line that it follows."""
_BEGINS = re.compile(r"^begins after (\d+)$", re.MULTILINE)
_BATCH = re.compile(r"^batch (\d+) loss ([\d.]+)$", re.MULTILINE)


@pytest.fixture
def scripts(tmp_path) -> pathlib.Path:
    """A folder with the script and its added lines, for any user to read."""
    text = (jobs.TOOLS / "keras_digits.py").read_text()
    assert "rover_kf" not in text
    for line, added in ADDED.items():
        assert text.count(line) == 1
        text = text.replace(line, line + added)
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "keras_digits.py").write_text(text)
    folder.chmod(0o755)
    return folder


@pytest.fixture
def job(cluster, namespace, with_trainer, shared_claim, scripts) -> RunningJob:
    """Two workers, begun."""
    shared_claim(tfjobs.CLAIM)
    command = ["python", "keras_digits.py", str(EPOCHS), str(BATCHES)]
    made = tfjobs.mirrored(namespace, 2, command)
    made["metadata"]["annotations"]["rover-kf.io/checkpoint.every"] = str(EVERY)
    apply(cluster, [with_trainer(made, scripts=scripts)])
    return RunningJob(cluster, namespace, tfjobs.NAME, "TFJob")


def _last(text: str) -> int:
    """The newest batch that the newest program has told."""
    told = _BATCH.findall(text.rpartition("begins after")[2])
    return int(told[-1][0]) if told else 0


def _reach(job: RunningJob, pod: str, batch: int) -> int:
    return eventually(
        lambda: (last := _last(job.log(pod))) >= batch and last,
        within=PATIENCE, every=0.2, what=f"{pod} reaches batch {batch}",
    )  # fmt: skip


def _sources(job: RunningJob) -> set[tuple[str, str]]:
    """Rank and source of each restore that the story tells."""
    told = [one["message"] for one in job.events() if one["reason"] == names.EVENT_RESTORED]
    found = (re.match(r"rank (\d) of 2 resumes at step \d+ from (\w+)", line) for line in told)
    return {(match[1], match[2]) for match in found if match}


@pytest.mark.at_length
def test_keras_goes_on_with_two_lines_added(faults, job):
    """A worker's process is killed, then its pod: both times both workers go on together with a
    batch less than two saves before, the loss goes on, and all batches are done in the end."""
    first, other = (f"{job.name}-worker-{index}" for index in range(2))
    _reach(job, first, BATCHES + 50)
    faults.kill(job.namespace, other, container="tensorflow")
    eventually(lambda: len(_BEGINS.findall(job.log(first))) == 2, within=PATIENCE, every=0.3)
    before = job.pods()
    _reach(job, first, 3 * BATCHES)
    assert _sources(job) == {("0", "memory"), ("1", "memory")}
    container = faults.processes(job.namespace, other, container="tensorflow")[0]
    faults.reach.send(signal.SIGKILL, container)  # the operator makes another pod
    eventually(lambda: len(_BEGINS.findall(job.log(first))) == 3, within=PATIENCE, every=0.3)
    assert eventually(job.verdict, within=PATIENCE, every=0.5, what="the end") == "Succeeded"

    text, after = job.log(first), job.pods()
    assert after[first]["metadata"]["uid"] == before[first]["metadata"]["uid"]
    assert after[other]["metadata"]["uid"] != before[other]["metadata"]["uid"]
    assert ("1", "peer") in _sources(job)
    begun = [int(number) for number in _BEGINS.findall(text)]
    programs = [_BATCH.findall(part) for part in text.split("begins after")[1:]]
    untrained = float(programs[0][0][1])
    for step, former, batches in zip(begun[1:], programs, programs[1:], strict=False):
        assert 0 <= int(former[-1][0]) - step <= 2 * EVERY
        assert int(batches[0][0]) == step + 1
        assert float(batches[0][1]) < untrained / 4
    assert int(programs[-1][-1][0]) == EPOCHS * BATCHES
    assert _BEGINS.findall(job.log(other)) == [str(begun[-1])]
    (accuracy,) = re.findall(r"^accuracy ([\d.]+)$", text, re.MULTILINE)
    assert float(accuracy) > 0.97
    print(f"\nbegan after {begun}, sources {sorted(_sources(job))}, accuracy {accuracy}")
