# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One TFJob with one fault: until it has ended, and what that cost."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import signal
import time
from collections.abc import Callable

from testcluster import host_python, jobs, tfjobs
from testcluster.cluster import Cluster
from testcluster.errors import ClusterError
from testcluster.faults import ProcessFaults
from testcluster.jobs import RunningJob
from testcluster.objects import Object, apply
from testcluster.pod_processes import OnMachine

from benchmarks.tfjob_bench import job_end

STEPS, FAULT_AT = 600, 105
PATIENCE, TRIES = 600.0, 3
_DONE = re.compile(r"^done (\d+)$", re.MULTILINE)
_SAVED = re.compile(r"^saved (\d+)$", re.MULTILINE)
_STARTS = re.compile(r"^starts after step (\d+) from (\w+)", re.MULTILINE)

SCENARIOS = {
    "worker_killed": ("worker-1", signal.SIGKILL),
    "ps_killed": ("ps-0", signal.SIGKILL),
    "ps_out_of_memory": ("ps-0", signal.SIGUSR1),
    "chief_killed": ("chief-0", signal.SIGKILL),
}
"""Pod, and what its training process is sent; SIGUSR1 makes it need more than its limit."""


class TooLong(Exception):
    """The job did not get where it was to go."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """Of one job."""

    completed: bool
    seconds: float
    """From its creation to the operator's verdict, or until it was given up."""
    recovered_seconds: float | None
    """From the fault to the next step; None if there was none."""
    steps_lost: int
    """Done before the fault and not in what the next program began with; of a job that failed, not
    in its newest file."""
    steps_done: int
    """The newest that the chief has told."""
    starts: list[tuple[str, str]]
    """Step and source of each start of the chief's program."""
    seen: str
    """Of a job that neither completed nor failed and did not get on any more; else nothing."""


def manifest(namespace: str, side: str) -> Object:
    """The sample with told steps; stock: without the label, and so without anything of ours."""
    job = tfjobs.telling(tfjobs.wide_and_deep(namespace, STEPS, {"memory.max": "2Gi"}))
    if side == "stock":
        del job["metadata"]["labels"], job["metadata"]["annotations"]
    return job


def run(cluster: Cluster, namespace: str, scenario: str, side: str) -> Outcome:
    """One job from its creation to its end.

    Raises:
        TooLong: it did not get to the fault, or neither ended nor made a step after it.
    """
    begun, job, chief = _at_fault(cluster, namespace, side)
    part, number = SCENARIOS[scenario]
    pod = f"{job.name}-{part}"
    fault = time.monotonic()
    ProcessFaults(OnMachine(cluster)).kill(namespace, pod, container="tensorflow", number=number)
    restarts, known = scenario != "worker_killed", chief.done()
    wait(lambda: job.verdict() or chief.went_on(known, restarts=restarts), "the job to go on")
    recovered = None if job.verdict() == "Failed" else time.monotonic() - fault
    seen = job_end.awaited(job, cluster)
    took = time.monotonic() - begun
    completed = not seen and job.verdict() == "Succeeded"
    lost, done = chief.lost(completed=completed), chief.done()
    return Outcome(completed, took, recovered, lost, done, chief.starts(), seen)


def _at_fault(cluster: Cluster, namespace: str, side: str) -> tuple[float, RunningJob, Log]:
    """When such a job began, itself and its chief, after the step at which the fault comes.

    One that fails sooner, since a busy machine answers no name in time, shows nothing of a fault:
    it is begun anew.
    """
    for _ in range(TRIES):
        begun = time.monotonic()
        made = manifest(namespace, side)
        apply(cluster, [host_python.with_host_python(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        job = RunningJob(cluster, namespace, tfjobs.NAME, "TFJob")
        chief = Log(job)
        wait(lambda: chief.done() >= FAULT_AT or job.verdict(), f"step {FAULT_AT}")  # noqa: B023
        if not job.verdict():
            return begun, job, chief
        print(f"{side}: {job.verdict()} after step {chief.done()}, before any fault", flush=True)
        remove(cluster, namespace)
    raise TooLong(f"no job got to step {FAULT_AT} in {TRIES} tries")


class Log:
    """What the chief's programs have printed, also those of a pod that is gone."""

    def __init__(self, job: RunningJob) -> None:
        self._job, self._texts = job, [""]

    def _text(self) -> str:
        new = self._job.log(f"{self._job.name}-chief-0")
        if new.startswith(self._texts[-1]):
            self._texts[-1] = new
        elif new:
            self._texts.append(new)  # another pod's
        return "".join(self._texts)

    def done(self) -> int:
        """The newest step."""
        return max(map(int, _DONE.findall(self._text())), default=0)

    def starts(self) -> list[tuple[str, str]]:
        """Step and source."""
        return _STARTS.findall(self._text())

    def went_on(self, known: int, *, restarts: bool) -> bool:
        """Whether a step was made since: by another program, or (a worker's loss) by the same.

        Args:
            known: the newest step when the fault was there; the same program may have been at the
                end of the next one.
            restarts: whether another program has to begin.
        """
        text = self._text()
        if not restarts:
            return self.done() > known + 1
        return len(self.starts()) > 1 and bool(_DONE.search(text.rpartition("starts after")[2]))

    def lost(self, *, completed: bool) -> int:
        """Steps that were done and had to be done again."""
        programs = re.split(r"^(?=starts after)", self._text(), flags=re.MULTILINE)[1:]
        lost = 0
        for before, after in itertools.pairwise(programs):
            told = max(map(int, _DONE.findall(before)), default=0)
            # One that was saved last may not have been told any more.
            lost += max(told - int(_STARTS.findall(after)[0][0]), 0)
        if not completed:
            text = self._text()
            lost += self.done() - max(map(int, _SAVED.findall(text)), default=0)
        return lost


def load() -> float:
    """Of this machine, over the last minute."""
    return round(os.getloadavg()[0], 1)


def remove(cluster: Cluster, namespace: str) -> None:
    """Delete the job; returns when its pods are gone."""
    job = RunningJob(cluster, namespace, tfjobs.NAME, "TFJob")
    words = ("--ignore-not-found", "--timeout=60s")
    cluster.kubectl("-n", namespace, "delete", "tfjob", job.name, *words)
    force = ("--all", "--grace-period=0", "--force", "--wait=false")
    cluster.kubectl("-n", namespace, "delete", "pods", *force)
    wait(lambda: not job.pods(), "the end of the pods")


def wait(look: Callable[[], object], what: str, *, patience: float = PATIENCE) -> None:
    """Return when what is looked at is there.

    Raises:
        TooLong: it is not within the patience.
    """
    deadline = time.monotonic() + patience
    while not _looked(look):
        if time.monotonic() > deadline:
            raise TooLong(f"{what}: not within {patience:g} s")
        time.sleep(0.3)


def _looked(look: Callable[[], object]) -> bool:
    try:
        return bool(look())
    except (ClusterError, json.JSONDecodeError):
        return False  # an API server that is busy is asked again
