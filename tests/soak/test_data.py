# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A million rows of Parquet, kills at any time, and a job that goes from 2 pods to 3, 1 and 2."""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.support.pods.launcher_pods import Job
from tests.support.training.counted_rows import TRAINING, Rows, kill_some, scale
from tests.support.waiting import eventually


@pytest.mark.torch
@pytest.mark.timeout(3600)
def test_each_of_a_million_rows_counts_once(tmp_path):
    """The journal of all steps, joined with those that survive."""
    rows = Rows(tmp_path / "rows", 1_000_000, 8192)
    rows.write(files=10, group=10_000)
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    with Job(2, max_nodes=3, restarts=50, warm=False) as job:
        enough = job.folder / "enough"
        command = (job.script(TRAINING), str(rows.folder), "8192", str(enough), "1024", "0.1")
        job.start(*command)
        last = _killed(job, [0, 1], chance, 0.0)
        for world in (3, 1, 2):
            for pod in sorted(set(range(world)) - set(job.pods)):
                job.add(pod, *command)
            eventually(lambda world=world: scale(job, world), within=120)
            last = _killed(job, list(range(world)), chance, last)
            for pod in sorted(set(job.pods) - set(range(world))):
                _remove(job, pod)
        enough.touch()
        assert job.pods[0].wait(1200) == job.pods[1].wait() == 0
        assert {step["of"] for step in job.pods[0].steps()} == {1, 2, 3}
        done, count = rows.check(job.pods[0].text())
        assert done > count


def _killed(job: Job, pods: list[int], chance: random.Random, after: float) -> float:
    """A kill of each of them, some steps after they have trained together again.

    The first pod is the last: three failures in a row would have a pod kept out.
    """
    for pod in [*chance.sample(pods[1:], len(pods) - 1), pods[0]]:
        after = job.stepping(*pods, after=after)
        time.sleep(chance.uniform(0.5, 4.0))
        after = kill_some(job, pod)
    return job.stepping(*pods, after=after)


def _remove(job: Job, pod: int) -> None:
    """End a pod that the job has no more, as a kubelet does."""
    gone = job.pods.pop(pod)
    for process in (gone.launcher, gone.sidecar):
        process.send_signal(signal.SIGTERM)
        process.wait(120)
