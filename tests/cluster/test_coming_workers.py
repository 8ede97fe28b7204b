# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Workers of a TFJob that come and go are killed on a real cluster: the others never wait, and what
the model counts twice is no more than what the killed ones were lent."""

from __future__ import annotations

import pytest
from testcluster import jobs, tfjobs
from testcluster.coming_worker import ComingWorker
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from testcluster.tfjobs import Chief

from rover_kf.api import names
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(1500), pytest.mark.usefixtures("controller")]

PATIENCE = 300.0
"""Seconds: processes load TensorFlow at once, on two cores."""
ROWS, EPOCHS, PAUSE = 569, 15, "0.2"
"""Of the sample's table, to train, and seconds after each batch: none is left before both kills."""


def _others(job: RunningJob, worker: ComingWorker) -> dict[str, str]:
    """Pods and restarts of all but one."""
    return {
        name: f"{pod['metadata']['uid']} {one['restartCount']}"
        for name, pod in job.pods().items()
        for one in pod["status"].get("containerStatuses", [])
        if name != worker.pod
    }


def _deaths(job: RunningJob, pod: str) -> list[str]:
    """What is told of processes of a pod that failed."""
    told = job.told(names.EVENT_PROCESS_FAILED)
    return [message for message in told if pod in message]


@pytest.mark.at_length
def test_a_worker_that_came_is_killed(cluster, namespace, with_trainer, shared_claim, faults):
    """Its program, then its whole container: it takes records again, in the same pod and in another
    one. The other worker and the chief go on, no record is lost, and what counts twice is at most
    what the killed ones were lent."""
    shared_claim(f"{tfjobs.COMING}-checkpoints")
    made = tfjobs.coming(namespace, EPOCHS)
    workers = made["spec"]["tfReplicaSpecs"]["Worker"]
    workers["replicas"] = 2
    command = workers["template"]["spec"]["containers"][0]["command"]
    command[command.index("--pause") + 1] = PAUSE
    apply(cluster, [with_trainer(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
    job = RunningJob(cluster, namespace, tfjobs.COMING, "TFJob")
    chief = Chief(job, PATIENCE)
    stays, dies = (ComingWorker(job, faults, index) for index in (0, 1))
    for worker in (stays, dies):
        worker.takes(10)
    others, pod = _others(job, dies), dies.uid()

    lent = [dies.killed()]
    stays.takes(5)
    dies.takes(5)
    assert dies.uid() == pod, "its program began anew in its pod"
    # Its sidecar knows why; the controller asks it every half minute.
    died = eventually(lambda: _deaths(job, dies.pod), within=PATIENCE, every=1.0, what="an Event")
    lent.append(dies.killed(container=True))
    stays.takes(5)
    eventually(lambda: dies.uid() not in ("", pod), within=PATIENCE, every=0.5, what="another pod")
    dies.takes(5)
    assert _others(job, dies) == others

    assert eventually(job.verdict, within=2 * PATIENCE, every=0.5, what="the end") == "Succeeded"
    assert len(chief.starts()) == 1
    result = chief.result()
    assert result["least"] == EPOCHS, "a row was lost"
    again = result["rows"] - EPOCHS * ROWS
    print(f"\nlent when killed {lent}, counted twice {again}; {died}; ended with {result}")
    assert 0 <= again <= sum(lent)
