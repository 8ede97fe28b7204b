# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Makes a fault in a running job and waits until every rank steps again."""

from __future__ import annotations

import os
import signal
import threading
import time

from rover_kf.api import names
from soaking import schedule
from soaking.job import Job
from soaking.recovery import Struck
from soaking.schedule import Fault

SETTLE_SECONDS = 60.0
"""For pods and coordinator to agree that all is well, after every rank steps again."""


def wait_pause(job: Job, seconds: float) -> None:
    """Let the job train for so long, by its own steps."""
    begun = time.time()

    def trained() -> bool:
        current = job.trace.read()
        newest = [line.at for line in current.newest.values()] if current else []
        return bool(newest) and min(newest) >= begun + seconds

    job.until(trained, f"{seconds} s of training", within=seconds + SETTLE_SECONDS)


def strike(job: Job, fault: Fault) -> Struck:
    """Make the fault; returns when every rank of the wanted world steps again.

    Raises:
        AssertionError: it did not recover in time.
    """
    before = job.trace.read()
    assert before is not None
    pod = "" if fault.index < 0 else job.pods()[fault.index].name
    at, step = time.time(), before.step
    _make(job, fault)
    over_at = time.time()
    job.trace.mark(over_at)
    must_change = fault.kind in schedule.CHANGES_WORLD
    least = before.number if must_change else before.number - 1
    what = f"recovery from {fault.kind} of {pod or 'the job'} at step {step}"
    found = job.until(lambda: job.recovered(fault.nodes, least), what)
    seconds = max(line.at for line in found.marked.values()) - over_at
    job.until(lambda: job.steady(fault.nodes), f"all well after {what}", within=SETTLE_SECONDS)
    return Struck(fault.kind, pod, at, step, before.number, seconds)


def _make(job: Job, fault: Fault) -> None:
    match fault.kind:
        case schedule.KILL_TRAINER:
            os.kill(_trainer(job, fault.index), signal.SIGKILL)
        case schedule.KILL_LAUNCHER:
            os.kill(job.processes(fault.index, names.PYTORCH_CONTAINER)[0], signal.SIGKILL)
        case schedule.KILL_SIDECAR:
            os.kill(job.processes(fault.index, names.SIDECAR_CONTAINER)[0], signal.SIGKILL)
        case schedule.DELETE_POD:
            job.cluster.delete_pod(job.key, job.pods()[fault.index].name)
        case schedule.STOP_TRAINER:
            _stop(_trainer(job, fault.index), fault.seconds)
        case schedule.STOP_SIDECAR:
            _stop(job.processes(fault.index, names.SIDECAR_CONTAINER)[0], fault.seconds)
        case _:
            job.rover.scale(job.key, fault.nodes)


def _trainer(job: Job, index: int) -> int:
    """The training process of a replica; ranks follow the replicas, one process each."""
    current = job.trace.read()
    assert current is not None
    process = current.newest[index].process
    assert process in job.processes(index, names.PYTORCH_CONTAINER)
    return process


def _stop(process: int, seconds: float) -> None:
    os.kill(process, signal.SIGSTOP)
    try:
        threading.Event().wait(seconds)  # the fault itself: so long it does not run
    finally:
        os.kill(process, signal.SIGCONT)
