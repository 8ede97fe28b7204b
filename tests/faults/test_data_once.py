# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Real training on Parquet files, killed and scaled: each row once an epoch in what survives."""

from __future__ import annotations

from tests.support.pods.launcher_pods import Job
from tests.support.training.counted_rows import TRAINING, Rows, kill_some, scale
from tests.support.waiting import eventually


def test_each_sample_counts_once_in_the_model_that_survives(tmp_path):
    """2 → 3 → 2 ranks with kills between: every step has the samples that it would have had in one
    process, and every sample stands in the final state once for each epoch."""
    rows = Rows(tmp_path / "rows", 1000, 32)
    rows.write(files=3, group=40)
    with Job(2, max_nodes=3, restarts=20) as job:
        enough = job.folder / "enough"
        command = (job.script(TRAINING), str(rows.folder), "32", str(enough), "7", "0.02")
        job.start(*command)
        job.stepping(0, 1)
        _check_status(job)
        again = job.stepping(0, 1, after=kill_some(job, 0, 1))
        job.add(2, *command)
        eventually(lambda: job.status().step > 0, within=120)
        assert scale(job, 3)
        job.stepping(0, 1, 2, after=again)
        later = job.stepping(0, 1, 2, after=kill_some(job, 2))
        assert scale(job, 2)
        job.stepping(0, 1, after=later)
        enough.touch()
        assert job.pods[0].wait() == job.pods[1].wait() == 0
        assert {step["of"] for step in job.pods[0].steps()} == {2, 3}
        rows.check(job.pods[0].text())


def _check_status(job: Job) -> None:
    """How far the epoch is, how fast, until when, and by whom."""

    def told():
        data = job.status().data
        shares = [share.used for share in data[0].workers] if data else []
        return len(shares) == 2 and all(shares) and data[0].rate and data[0]

    data = eventually(told)
    print(f"{data}")
    assert (data.name, data.slots, data.poisoned) == ("loader", 1000, 0)
    assert 0 < data.done <= 1000
    assert data.eta_seconds > 0
    assert max(share.used for share in data.workers) <= data.done // 2 + 32
