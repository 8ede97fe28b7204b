# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How a job ends whose restart policy would only start its containers again."""

from __future__ import annotations

import pytest
import yaml
from brought_about import OTHER_ENTRIES, OTHER_SIZE
from job_manifests import make_job, trainer_of
from tests_support import eventually

from rover_kf import errors
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


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_who_waits_by_kubeflows_name_hears_the_coordinators_verdict(tmp_path):
    """As ``wait`` does: its words are known a moment after the operator's, which name no cause."""
    script = tmp_path / "train.py"
    script.write_text("nowhere_to_be_found\n")
    job = make_job(workers=1, policy={"checkpoint.arena": "16Mi"})
    job["spec"]["nprocPerNode"] = "1"
    trainer_of(job)["command"] = ["torchrun", str(script)]
    places = {"state": str(tmp_path / "state"), "history": f"sqlite:///{tmp_path}/history.db"}
    with RoverClient.at("embedded", **places) as rover:
        key = rover.submit(yaml.safe_dump(job)).key
        with pytest.raises(errors.JobFailed, match="NameError: name 'nowhere_to_be_found'"):
            rover.wait_for_job_conditions(
                key.name, key.namespace, wait_timeout=200, polling_interval=0.005
            )


SAVING = """
import sys
import torch
import rover_kf
saver = rover_kf.Checkpointer(every=1, replicated=False)
state = {name: torch.zeros(2) for name in sys.argv[1:]}
step = saver.restore(state) + 1
saver.step(step, state)
assert saver.wait(step, "durable", 60)
saver.close()
"""


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("way", "ranks", "entries"), [(OTHER_ENTRIES, 2, ("w", "new")), (OTHER_SIZE, 3, ("w",))]
)
def test_a_state_that_does_not_fit_ends_the_job_at_once(tmp_path, way, ranks, entries):
    """Run again under its name with an entry more, or with another number of ranks, each of which
    has its own: no restart is spent on what stays as it is, and nothing is called passing."""
    script = tmp_path / "train.py"
    script.write_text(SAVING)
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    policy = {"checkpoint.arena": "16Mi", "checkpoint.path": str(checkpoints)}

    def run(ranks: int, entries: tuple[str, ...]) -> tuple[str, list[str]]:
        job = make_job(workers=1, policy=policy)
        job["spec"]["nprocPerNode"] = str(ranks)
        trainer_of(job)["command"] = ["torchrun", str(script), *entries]
        places = {"state": f"{tmp_path}/{ranks}{entries}", "history": f"sqlite:///{tmp_path}/h.db"}
        with RoverClient.at("embedded", **places) as rover:
            key = rover.submit(yaml.safe_dump(job)).key
            eventually(lambda: rover.get(key).finished, within=100, every=0.2, what="the end")
            rover.settle(key)  # its story may be told a moment later
            return rover.get(key).phase, [one.message for one in rover.cluster.list_events(key)]

    phase, told = run(2, ("w",))
    assert phase == "Succeeded", told
    phase, told = run(ranks, entries)
    assert phase == "Failed", told
    assert any(f": {way.kind}: " in message for message in told), told
    assert not any("may be there again" in message for message in told), told
    assert sum(" processes in 1 pods" in message for message in told) == 1, told
