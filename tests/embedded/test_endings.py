# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How a job ends whose restart policy would only start its containers again."""

from __future__ import annotations

import pytest
import yaml
from job_manifests import make_job, trainer_of
from tests_support import eventually

from rover_kf.api import names
from rover_kf.client import RoverClient

SCRIPT = """
import torch
import rover_kf
saver, state = rover_kf.Checkpointer(), {"w": torch.zeros(2)}
for step in range(saver.restore(state) + 1, 50):
    saver.step(step, state)
    if step == 5:
        raise OSError("gone")
"""


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_verdict_ends_a_job_of_restart_policy_on_failure(tmp_path):
    """Its budget is spent, its launcher ends with 1 and is started again: the job fails all the
    same, with the verdict as an Event."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    job = make_job(workers=1, policy={"failures.restarts": "1", "checkpoint.arena": "16Mi"})
    job["spec"]["nprocPerNode"] = "1"
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "OnFailure"
    trainer_of(job)["command"] = ["torchrun", str(script)]
    places = {"state": str(tmp_path / "state"), "history": f"sqlite:///{tmp_path}/history.db"}
    with RoverClient.at("embedded", **places) as rover:
        key = rover.submit(yaml.safe_dump(job)).key
        eventually(lambda: rover.get(key).finished, within=200, every=0.2, what="the job's end")
        assert rover.get(key).phase == "Failed"

        def told(reason: str) -> list[str]:
            events = rover.cluster.list_events(key)
            return [event.message for event in events if event.reason == reason]

        (why,) = eventually(lambda: told(names.EVENT_NO_MORE_RESTARTS), what="the Event")
        (how,) = told("PyTorchJobFailed")
    assert "the budget of 1 restarts is spent" in why
    assert "backoff limit" in how
