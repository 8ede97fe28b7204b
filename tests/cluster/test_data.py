# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Data on a real cluster: what steps that survive were given, while all that holds it breaks."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from chaos import faults as breaking
from chaos.faults import Fault
from chaos.scene import FIRST, SECOND, Scene
from pyarrow import parquet
from testcluster import jobs, sample_journal
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from testcluster.sample_journal import SampleJournal

from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("controller")

ROWS, DIGITS, BATCH = 1_000_000, 1797, 8192
GROUP = 20_000
FILES = 5
THIRD = "worker-2"


@dataclasses.dataclass(frozen=True, slots=True)
class Blow:
    """A fault, and how many pods the job has then."""

    pods: int
    fault: Fault
    moves: bool = True
    """Training goes on in a new round; else it need only go on."""


USUAL = (
    Blow(2, breaking.kill_trainer(FIRST)),
    Blow(3, breaking.delete_pod(THIRD)),
    Blow(1, breaking.kill_trainer(FIRST)),
    Blow(2, breaking.delete_pod(FIRST)),
)
"""The first pod has the coordinator, and with it the ledger."""
ALL = (
    Blow(2, breaking.kill_sidecar(FIRST), moves=False),
    Blow(2, breaking.delete_pod_at_once(SECOND)),
    Blow(3, breaking.power_loss),
    Blow(3, breaking.both(breaking.kill_sidecar(FIRST), breaking.kill_trainer(SECOND))),
    Blow(3, breaking.delete_pod_at_once(FIRST)),
    Blow(1, breaking.delete_pod_at_once(FIRST)),
    Blow(2, breaking.kill_trainer(SECOND)),
)
"""The only pod deleted: what is in memory is lost, and with it who has read what."""


@pytest.fixture
def begin(  # noqa: PLR0917 - all of them are broken
    cluster, namespace, with_trainer, checkpoints, faults, node_faults, controller, toolbox_image
) -> Callable[[int], Scene]:
    """Starts a job of two pods that trains so many epochs on Parquet and on leased digits."""
    folder = checkpoints / "rows"
    folder.mkdir()
    chance = np.random.default_rng(1)
    for number, part in enumerate(np.array_split(np.arange(ROWS, dtype=np.int32), FILES)):
        values = chance.random(len(part), dtype=np.float32)
        content = pa.table({"number": part, "value": values})
        parquet.write_table(content, folder / f"{number}.parquet", row_group_size=GROUP)

    def start(epochs: int) -> Scene:
        manifest = jobs.digits(namespace)
        manifest["metadata"]["annotations"] |= {
            "rover-kf.io/checkpoint.every": "20",  # a kill hits between two saves
            "rover-kf.io/scaling.mode": "off",
        }
        manifest["spec"]["elasticPolicy"] |= {"minReplicas": 1, "maxReplicas": 3}
        worker = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]
        options = ["/checkpoints/rows", str(BATCH), str(epochs)]
        container = worker["template"]["spec"]["containers"][0]
        container["command"] = ["torchrun", "/tools/counted.py", *options]
        apply(cluster, [with_trainer(manifest, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        job = RunningJob(cluster, namespace, manifest["metadata"]["name"])
        return Scene(
            cluster, job, faults, node_faults, checkpoints, checkpoints, controller, namespace,
            toolbox_image,
        )  # fmt: skip

    return start


@pytest.mark.parametrize(
    ("blows", "epochs"),
    [
        pytest.param(USUAL, 3, id="usual", marks=pytest.mark.timeout(600)),
        pytest.param(ALL, 8, id="all", marks=(pytest.mark.timeout(1800), pytest.mark.at_length)),
    ],
)
def test_each_sample_counts_once_in_what_survives(begin, hurry, blows, epochs):
    """Faults at steps by chance, while the job has 2 pods, 3, 1 and 2: the journal of (sample,
    step), joined with the lineage that survives, has each of a million rows and each leased digit
    once an epoch."""
    chance = random.Random(7)
    scene = begin(epochs)
    journal = SampleJournal(scene.storage / "journal")
    size = 2
    _trains(journal, size, 0.0)
    for number, blow in enumerate(blows):
        if blow.pods != size:
            begun, size = time.monotonic(), blow.pods
            _scale(scene.job, size)
            _trains(journal, size, begun)
        at = journal.step() + chance.randrange(1, 9)
        eventually(lambda at=at: journal.step() >= at, within=60, every=0.05, what=f"step {at}")
        begun = time.monotonic()
        with blow.fault(scene):
            _trains(journal, None, begun, anew=blow.moves)
        _trains(journal, size, begun, anew=blow.moves)
        print(f"{number}: overcome by {size} pods after {time.monotonic() - begun:.1f} s")
    hurry()
    assert eventually(scene.job.verdict, within=240, every=1, what="the job's end") == "Succeeded"
    _check(journal, epochs)


def _check(journal: SampleJournal, epochs: int) -> None:
    surviving = journal.surviving()
    assert list(surviving) == list(range(1, max(surviving) + 1))
    for step, lines in surviving.items():
        assert sorted(line["rank"] for line in lines) == list(range(lines[0]["world"])), step
    rows, leased = (sample_journal.counts(surviving, name) for name in ("rows", "leased"))
    done = {(line["begun"], line["step"]) for line in journal.steps() if line["rank"] == 0}
    lives = {line["begun"] for line in journal.steps() if line["rank"] == 0}
    again = len(done) - len(surviving)
    print(f"{len(surviving)} steps survive, {again} were done again, in {len(lives)} worlds")
    assert {line["world"] for line in journal.steps()} == {1, 2, 3}
    assert again > 0
    assert (rows == epochs).all()
    assert len(rows) == ROWS
    assert (leased == epochs).all()
    assert len(leased) == DIGITS


def _scale(job: RunningJob, size: int) -> None:
    replicas = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": size}}}}
    given = ("--type", "merge", "-p", json.dumps(replicas))
    job.cluster.kubectl("-n", job.namespace, "patch", "pytorchjob", job.name, *given)


def _trains(journal: SampleJournal, size: int | None, since: float, *, anew: bool = True) -> None:
    """Wait for steps of a world of that size, or of any, since then."""
    what = f"steps of {size or 'any'} ranks"
    trains = lambda: journal.trains(size, since, anew=anew)  # noqa: E731
    eventually(trains, within=240, every=0.1, what=what)
