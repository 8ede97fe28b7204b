# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A TFJob on a real cluster whose parameter servers write their own variables."""

from __future__ import annotations

import signal

import pytest
from testcluster import jobs, tfjobs
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from testcluster.tfjobs import Chief, Start

from rover_kf.api import names
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(1500), pytest.mark.usefixtures("controller")]

PATIENCE = 300.0
EPOCHS, BATCHES = 100, 9
STEPS = EPOCHS * BATCHES
TABLES = "/checkpoints/tables"


def _goes_on(chief: Chief, begun: Start, losses: dict[int, str]) -> None:
    """With the loss that the program before it had at that step."""
    # A program that is killed between a save and its next line has not told that step's loss.
    assert begun.loss == losses.get(begun.step, begun.loss)
    chief.reach(begun.step + 20)


@pytest.mark.at_length
def test_servers_and_a_chief_are_lost_that_write_apart(
    cluster, namespace, faults, with_trainer, shared_claim
):
    """A server's program, the chief's, and the chief's whole pod with its memory: each time it goes
    on from what all servers wrote, at last from storage, and the volume does not fill up."""
    shared_claim(tfjobs.CLAIM)
    policy = {"checkpoint.persist-seconds": "0", "memory.max": "2Gi"}
    made = tfjobs.sharded(tfjobs.wide_and_deep(namespace, STEPS, policy), TABLES, 2)
    apply(cluster, [with_trainer(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
    job = RunningJob(cluster, namespace, tfjobs.NAME, "TFJob")
    chief, server = Chief(job, PATIENCE), f"{job.name}-ps-1"
    chief.reach(30)
    starts = []
    for killed in (server, chief.pod):
        before = len(chief.starts())
        faults.kill(namespace, killed, container="tensorflow")
        starts.append(chief.start_after(before))
        _goes_on(chief, starts[-1], chief.losses())
    assert {begun.source for begun in starts} == {"memory"}

    uid = job.pods()[chief.pod]["metadata"]["uid"]
    losses = chief.losses()
    containers = ("tensorflow", names.SIDECAR_CONTAINER)
    for process in [faults.processes(namespace, chief.pod, container=one)[0] for one in containers]:
        faults.reach.send(signal.SIGKILL, process)

    def another() -> bool:
        found = job.pods().get(chief.pod)
        if found is not None and found["metadata"]["uid"] == uid:
            losses.update(chief.losses())
            return False
        return found is not None

    eventually(another, within=PATIENCE, every=0.3, what="another chief's pod")
    starts.append(chief.start_after(0))  # of a pod of its own, whose log begins anew
    assert starts[-1].source == "storage"
    _goes_on(chief, starts[-1], losses)
    listed = cluster.kubectl(
        "-n", namespace, "exec", server, "-c", "tensorflow", "--", "ls", f"{TABLES}/{job.name}"
    ).split()
    assert eventually(job.verdict, within=PATIENCE, every=0.5, what="the end") == "Succeeded"
    result = chief.result()
    assert (result["steps"], result["resumed"]) == (STEPS, "storage")
    assert result["least"] == EPOCHS, "a row was lost"
    assert result["loss"] < 0.05
    assert len(listed) < 12, "what is older is removed"
    print(f"\nwent on {starts}, {len(listed)} folders on the volume, ended with {result}")
