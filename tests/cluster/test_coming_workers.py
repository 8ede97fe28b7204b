# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Workers of a TFJob that come and go are killed on a real cluster: the others never wait, and what
the model counts twice is no more than what the killed ones were lent."""

from __future__ import annotations

import signal

import pytest
from testcluster import jobs, tfjobs
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from testcluster.tfjobs import Chief
from tests_support import eventually

from rover_kf.api import names

pytestmark = [pytest.mark.timeout(1500), pytest.mark.usefixtures("controller")]

PATIENCE = 300.0
"""Seconds: processes load TensorFlow at once, on two cores."""
ROWS, EPOCHS, PAUSE = 569, 15, "0.2"
"""Of the sample's table, to train, and seconds after each batch: none is left before both kills."""


class Worker:
    """One that takes records.

    Args:
        job: that it is of.
        faults: ways to end its processes.
        index: of it.
    """

    def __init__(self, job: RunningJob, faults, index: int) -> None:
        self.pod, self._job, self._faults = f"{job.name}-worker-{index}", job, faults
        self._rank = str(index + 1)  # in the ledger, of which 0 is the chief's

    def uid(self) -> str:
        """Of its pod; empty while there is none."""
        found = self._job.pods().get(self.pod)
        return found["metadata"]["uid"] if found else ""

    def batches(self) -> int:
        """That programs of this pod have taken."""
        return self._job.log(self.pod).count("took ")

    def takes(self, more: int) -> None:
        """Wait until it has taken so many more."""
        before = self.batches()
        eventually(
            lambda: self.batches() >= before + more,
            within=PATIENCE, every=0.5, what=f"{more} more batches of {self.pod}",
        )  # fmt: skip

    def killed(self, *, container: bool = False) -> int:
        """Its program is ended, or its whole container; records that it was lent.

        It stands still first, so that they are those that the ledger has told when it is killed.
        """
        where = (self._job.namespace, self.pod)
        (program,) = self._faults.kill(*where, container="tensorflow", number=signal.SIGSTOP)
        (lent,) = eventually(self._lent, within=20, every=0.2, what="what it was lent")
        first = self._faults.processes(*where, container="tensorflow")[0]
        self._faults.reach.send(signal.SIGKILL, first if container else program)
        return lent

    def _lent(self) -> tuple[int, ...]:
        """As the ledger has it, once two looks are alike: what was on its way has arrived."""
        looks = [self._outstanding(), self._outstanding()]
        return (looks[0],) if looks[0] == looks[1] else ()

    def _outstanding(self) -> int:
        (data,) = self._job.status()["data"]
        rank = f"{self._rank}/"
        known = [one for one in data["workers"] if one["worker"].startswith(rank)]
        return sum(one["outstanding"] for one in known)


def _others(job: RunningJob, worker: Worker) -> dict[str, str]:
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
    chief, stays, dies = Chief(job, PATIENCE), Worker(job, faults, 0), Worker(job, faults, 1)
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
