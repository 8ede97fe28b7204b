# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Data on a real cluster: what steps that survive were given, while pods are killed and scaled."""

from __future__ import annotations

import base64
import collections
import json
import pathlib
import random
import re

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from testcluster import jobs
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from tests_support import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("controller")]

ROWS, DIGITS, EPOCHS, BATCH = 1_000_000, 1797, 2, 8192
GROUP = 20_000
FILES = 5
_LINE = re.compile(r"^\{.*\}$", re.MULTILINE)


@pytest.fixture
def start(cluster, namespace, with_trainer, checkpoints):
    """Starts a job of two pods that trains on rows of Parquet and on leased digits."""
    folder = checkpoints / "rows"
    folder.mkdir()
    chance = np.random.default_rng(1)
    for number, part in enumerate(np.array_split(np.arange(ROWS, dtype=np.int32), FILES)):
        values = chance.random(len(part), dtype=np.float32)
        content = pa.table({"number": part, "value": values})
        parquet.write_table(content, folder / f"{number}.parquet", row_group_size=GROUP)

    def begin() -> RunningJob:
        manifest = jobs.digits(namespace)
        manifest["metadata"]["annotations"] |= {
            "rover-kf.io/checkpoint.every": "5",
            "rover-kf.io/scaling.mode": "off",
        }
        manifest["spec"]["elasticPolicy"] |= {"minReplicas": 1, "maxReplicas": 3}
        worker = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]
        options = ["/checkpoints/rows", str(BATCH), str(EPOCHS)]
        container = worker["template"]["spec"]["containers"][0]
        container["command"] = ["torchrun", "/tools/counted.py", *options]
        apply(cluster, [with_trainer(manifest, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, namespace, manifest["metadata"]["name"])

    return begin


class Journal:
    """What all processes of a job have written."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def lines(self) -> list[dict]:
        """Whole ones, of all processes."""
        texts = [path.read_text() for path in sorted(self._folder.glob("*.jsonl"))]
        return [json.loads(line) for text in texts for line in _LINE.findall(text)]

    def steps(self) -> list[dict]:
        """Those that tell of a step."""
        return [line for line in self.lines() if "step" in line]

    def round_of(self, world: int, after: int) -> int:
        """The newest round, if all ranks of a world of that size have made a step in it."""
        newest = max((line["round"] for line in self.steps()), default=0)
        ranks = {line["rank"]: line["world"] for line in self.steps() if line["round"] == newest}
        return newest if newest > after and ranks == dict.fromkeys(range(world), world) else 0

    def surviving(self) -> dict[int, list[dict]]:
        """By step what the last round that did it gave to each rank."""
        last: dict[int, int] = collections.defaultdict(int)
        for line in self.steps():
            last[line["step"]] = max(last[line["step"]], line["round"])
        found: dict[int, list[dict]] = collections.defaultdict(list)
        for line in self.steps():
            if line["round"] == last[line["step"]]:
                found[line["step"]].append(line)
        return dict(sorted(found.items()))


def test_each_sample_counts_once_in_what_survives(start, faults, hurry, checkpoints):
    """Kills at steps by chance, 2 pods, 3, 1 and 2: the journal of (sample, step), joined with the
    lineage that survives, has each of a million rows and each leased digit once an epoch."""
    chance = random.Random(7)
    job, journal = start(), Journal(checkpoints / "journal")
    known = 0
    for size in (2, 3, 1, 2):
        _scale(job, size)
        known = _trains(journal, size, known)
        at = max(line["step"] for line in journal.steps()) + chance.randrange(1, 9)
        eventually(lambda at=at: _step(journal) >= at, within=60, every=0.05, what=f"step {at}")
        victim = f"{job.name}-worker-{chance.randrange(size)}"
        faults.kill(job.namespace, victim, container="pytorch")
        known = _trains(journal, size, known)
    hurry()
    assert eventually(job.verdict, within=240, every=1, what="the job's end") == "Succeeded"
    surviving = journal.surviving()
    assert list(surviving) == list(range(1, max(surviving) + 1))
    for step, lines in surviving.items():
        assert sorted(line["rank"] for line in lines) == list(range(lines[0]["world"])), step
    rows, leased = (_counts(surviving, name) for name in ("rows", "leased"))
    again = len({(line["round"], line["step"]) for line in journal.steps()}) - len(surviving)
    sizes = {line["world"] for line in journal.steps()}
    print(f"{len(surviving)} steps survive, {again} were done again, {known} rounds or more")
    assert sizes == {1, 2, 3}
    assert (rows == EPOCHS).all()
    assert len(rows) == ROWS
    assert (leased == EPOCHS).all()
    assert len(leased) == DIGITS


def _scale(job: RunningJob, size: int) -> None:
    replicas = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": size}}}}
    given = ("--type", "merge", "-p", json.dumps(replicas))
    job.cluster.kubectl("-n", job.namespace, "patch", "pytorchjob", job.name, *given)


def _trains(journal: Journal, size: int, known: int) -> int:
    """Wait for a round of that size after a known one; its number."""
    what = f"a world of {size} after round {known}"
    return eventually(lambda: journal.round_of(size, known), within=180, every=0.1, what=what)


def _step(journal: Journal) -> int:
    return max(line["step"] for line in journal.steps())


def _counts(surviving: dict[int, list[dict]], name: str) -> np.ndarray:
    """How often each sample was given, by its number."""
    parts = [
        np.frombuffer(base64.b64decode(line[name]), np.int32)
        for lines in surviving.values()
        for line in lines
    ]
    return np.bincount(np.concatenate(parts))
