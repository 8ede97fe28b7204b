# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One TFJob whose PS has too little of a core: left alone, stopped and restarted, or resized."""

from __future__ import annotations

import dataclasses
import json
import time

from testcluster import host_python, jobs, tfjobs
from testcluster.cluster import Cluster
from testcluster.jobs import RunningJob
from testcluster.objects import apply

from benchmarks.tfjob_bench import run as job_run

STEPS = 1600
ENOUGH = "1"
"""Cores that it may have, and that a restart gives it."""
SIDES = {
    "none": {"scaling.mode": "recommend"},
    "restart": {"scaling.mode": "recommend"},
    "resize": {"scaling.mode": "auto", "cpu.max": ENOUGH},
}


@dataclasses.dataclass(frozen=True, slots=True)
class Course:
    """Of one job."""

    completed: bool
    seconds: float
    """From its creation to the operator's verdict."""
    first_step: float
    """Seconds from its creation."""
    found: float | None
    """Seconds from its creation until an Event told that the PS is short; None: it was not."""
    steps_lost: int
    told: list[str]
    """Events about it."""
    load: list[float]
    """Of the machine, at the begin and at the end."""


def run(cluster: Cluster, namespace: str, side: str) -> Course:
    """One job from its creation to its end.

    Raises:
        TooLong: it did not get on.
    """
    begun, load = time.monotonic(), job_run.load()
    made = tfjobs.hot(namespace, STEPS, SIDES[side])
    apply(cluster, [host_python.with_host_python(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
    job = RunningJob(cluster, namespace, tfjobs.NAME, "TFJob")
    chief = job_run.Log(job)
    job_run.wait(lambda: chief.done() > 0, "the first step")
    first = time.monotonic() - begun
    job_run.wait(lambda: _told(job) or job.verdict(), "the PS to be found")
    found = time.monotonic() - begun if _told(job) else None
    if side == "restart" and found is not None:
        _restart(cluster, job, chief)
    job_run.wait(lambda: bool(job.verdict()), "the end", patience=1500)
    took, completed = time.monotonic() - begun, job.verdict() == "Succeeded"
    lost = chief.lost(completed=completed)
    return Course(completed, took, first, found, lost, _told(job), [load, job_run.load()])


def _restart(cluster: Cluster, job: RunningJob, chief: job_run.Log) -> None:
    """What can be done without a resize: all pods end, the template is changed, all begin anew."""
    specs = job.read()["spec"]["tfReplicaSpecs"]
    containers = specs["PS"]["template"]["spec"]["containers"]
    for container in containers:
        if container["name"] == "tensorflow":
            container["resources"]["limits"]["cpu"] = ENOUGH
    _patch(cluster, job, {"runPolicy": {"suspend": True}})
    job_run.wait(lambda: chief.done() >= 0 and not job.pods(), "the end of the pods")
    changed = {"PS": {"template": {"spec": {"containers": containers}}}}
    _patch(cluster, job, {"runPolicy": {"suspend": False}, "tfReplicaSpecs": changed})


def _patch(cluster: Cluster, job: RunningJob, spec: dict[str, object]) -> None:
    words = ("patch", "tfjob", job.name, "--type=merge", "-p", json.dumps({"spec": spec}))
    cluster.kubectl("-n", job.namespace, *words)


def _told(job: RunningJob) -> list[str]:
    reasons, uid = (
        ("ServerCpuThrottled", "CpuRaised", "CpuNotRaised"),
        job.read()["metadata"]["uid"],
    )
    ours = (event for event in job.events() if event["involvedObject"]["uid"] == uid)
    return [event["message"] for event in ours if event["reason"] in reasons]
