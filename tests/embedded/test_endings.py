# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How a job ends whose restart policy would only start its containers again."""

from __future__ import annotations

import pytest
import yaml

from rover_kf import errors
from rover_kf.api import names
from rover_kf.client import RoverClient
from tests.support.failure_cases import OTHER_ENTRIES, OTHER_SIZE
from tests.support.jobs.job_manifests import make_job, trainer_of
from tests.support.waiting import eventually

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
    with RoverClient.connect("embedded", **places) as rover:
        key = rover.submit(yaml.safe_dump(job)).key
        eventually(lambda: rover.get(key).finished, within=200, every=0.2, what="the job's end")
        assert rover.get(key).phase == "Failed"

        def told(reason: str) -> list[str]:
            events = rover.cluster.list_events(key)
            return [event.message for event in events if event.reason == reason]

        (why,) = eventually(lambda: told(names.EVENT_RESTART_BUDGET_EXHAUSTED), what="the Event")
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
    with RoverClient.connect("embedded", **places) as rover:
        key = rover.submit(yaml.safe_dump(job)).key
        with pytest.raises(errors.JobFailed, match="NameError: name 'nowhere_to_be_found'"):
            rover.wait_for_job_conditions(
                key.name, key.namespace, wait_timeout=200, polling_interval=0.005
            )


UNLIKE = """
import os, pathlib, sys
import rover_kf
own = pathlib.Path(sys.argv[1], os.environ["RANK"])
own.mkdir(parents=True, exist_ok=True)
with open(own.parent / "runs", "a") as runs:
    print(os.environ["RANK"], file=runs)
saver = rover_kf.DirectoryCheckpointer(replicated=True)
saver.restore(own / "begin")
(own / "out").mkdir(exist_ok=True)
(own / "out" / f"of rank {os.environ['RANK']}").write_text("not alike")
saver.save(1, own / "out")
assert not saver.wait(1)  # long before the ten minutes that a step may take to be durable
saver.close()
"""

ALONE = """
import os, pathlib, sys
import torch
import rover_kf
own = pathlib.Path(sys.argv[1])
own.mkdir(exist_ok=True)
with open(own / "runs", "a") as runs:
    print(os.environ["RANK"], file=runs)
saver, state = rover_kf.Checkpointer(), {"w": torch.zeros(2)}
saver.restore(state)
if os.environ["RANK"] == "0":
    saver.save(1, state)
saver.close()
"""


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("script", "policy", "why"),
    [
        (UNLIKE, "ExitCode", "rank 1 are not those of rank 0"),
        (UNLIKE, "OnFailure", "rank 1 are not those of rank 0"),
        (ALONE, "ExitCode", "ranks [1] have not saved it"),
    ],
    ids=["unlike", "unlike-in-place", "alone"],
)
def test_a_state_that_never_comes_to_storage_fails_the_job_once(tmp_path, script, policy, why):
    """Ranks save what is not alike as if it were, or one rank saves alone: after ten minutes the
    pod was tried again, and trained from its beginning, for ever."""
    (tmp_path / "train.py").write_text(script)
    kept = {"checkpoint.arena": "16Mi", "checkpoint.path": str(tmp_path / "kept")}
    job = make_job(workers=1, policy=kept)
    job["spec"]["nprocPerNode"] = "2"
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = policy
    ranks = tmp_path / "ranks"
    trainer_of(job)["command"] = ["torchrun", str(tmp_path / "train.py"), str(ranks)]
    places = {"state": str(tmp_path / "state"), "history": f"sqlite:///{tmp_path}/history.db"}
    with RoverClient.connect("embedded", **places) as rover:
        key = rover.submit(yaml.safe_dump(job)).key
        eventually(lambda: rover.get(key).finished, within=200, every=0.2, what="the job's end")
        assert rover.get(key).phase == "Failed"

        def verdicts() -> list[str]:
            events = rover.cluster.list_events(key)
            return [one.message for one in events if one.reason == names.EVENT_JOB_FAILED]

        (verdict,) = eventually(verdicts, what="the Event")
        assert verdict.startswith("step 1 does not come to storage: ")
        assert why in verdict
    assert sorted((ranks / "runs").read_text().split()) == ["0", "1"]


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
        with RoverClient.connect("embedded", **places) as rover:
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
