# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a run measures of its storage sets the next one's time to end."""

from __future__ import annotations

import math

import pytest
import yaml

from rover_kf.api import names
from rover_kf.api.records import RunRecord
from rover_kf.client import RoverClient
from rover_kf.client.submission import BANDWIDTH_KEY
from rover_kf.history import recorder
from tests.support.jobs.job_manifests import make_job, pod_of, trainer_of
from tests.support.waiting import eventually

SCRIPT = """
import torch
import rover_kf
saver, state = rover_kf.Checkpointer(), {"w": torch.zeros(4 << 20)}
for step in range(saver.restore(state) + 1, 4):
    state["w"] += 1
    saver.save(step, state)
    assert saver.wait(step=step, level="durable", timeout=100)
"""


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_run_measures_its_storage_for_the_next(tmp_path):
    """16 MiB were persisted under a cap of 8 MiB a second: the figure is the storage's, above it,
    and stands in the next job's policy, from which its pods' grace follows."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    policy = {
        "checkpoint.path": str(tmp_path / "stored"),
        "checkpoint.arena": "40Mi",
        "checkpoint.bandwidth": "8Mi",
        "checkpoint.persist-seconds": "0",
    }
    job = make_job(workers=1, policy=policy)
    job["spec"]["nprocPerNode"] = "1"
    trainer_of(job)["command"] = ["torchrun", str(script)]
    places = {"state": str(tmp_path / "state"), "history": f"sqlite:///{tmp_path}/history.db"}
    with RoverClient.connect("embedded", **places) as rover:
        assert rover.patch(yaml.safe_dump(job)).notes[0].endswith("storage takes)")
        key = rover.submit(yaml.safe_dump(job)).key
        rover.wait(key, timeout=200)

        def ended() -> list[RunRecord]:
            found = rover.history.list(name=key.name)
            return [record for record in found if record.outcome == recorder.SUCCEEDED]

        (record,) = eventually(ended, what="the history has the end, and with it the last figure")
        rate = record.storage_rate
        assert rate > 8 << 20
        job["metadata"]["annotations"][f"{names.PREFIX}checkpoint.arena"] = "64Gi"
        trainer_of(job)["resources"] = {"limits": {"memory": "128Gi"}}
        following = rover.patch(yaml.safe_dump(job))
    assert following.manifest["metadata"]["annotations"][BANDWIDTH_KEY] == str(round(rate))
    persist = math.ceil((32 << 30) / round(rate))
    seconds = min(names.DRAIN_SECONDS + persist + names.END_SECONDS, 600)
    assert pod_of(following.manifest)["terminationGracePeriodSeconds"] == seconds
