# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a TFJob ends: its verdict, or what is seen of one that has stopped getting on.

A job whose steps are all done, and whose chief's process waits for ever, has neither completed nor
failed: the operator would leave it so.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import time

from testcluster.cluster import Cluster
from testcluster.errors import ClusterError
from testcluster.faults import ProcessFaults
from testcluster.jobs import RunningJob
from testcluster.pod_processes import OnMachine

STILL_SECONDS = 240.0
"""Without a line of the chief's, another pod, or a restart, after which a job is given up."""
_FRAMES = 6


def awaited(job: RunningJob, cluster: Cluster) -> str:
    """Return when the job has ended (nothing) or does not get on any more: what is seen of it."""
    known, since = None, time.monotonic()
    while time.monotonic() - since < STILL_SECONDS:
        with contextlib.suppress(ClusterError, json.JSONDecodeError):  # a busy API is asked again
            if job.verdict():
                return ""
            now = _place(job)
            if now != known:
                known, since = now, time.monotonic()
        time.sleep(0.5)
    return _seen(job, cluster)


def _place(job: RunningJob) -> tuple[object, ...]:
    """What changes while a job gets on."""
    pods = job.pods().values()
    containers = [
        (pod["metadata"]["uid"], one["name"], one["restartCount"])
        for pod in pods
        for one in pod.get("status", {}).get("containerStatuses", [])
    ]
    return len(job.log(_chief(job))), sorted(containers)


def _seen(job: RunningJob, cluster: Cluster) -> str:
    """Its pods' phases, and where the chief's process is: told.py tells that at a SIGUSR2."""
    faults = ProcessFaults(OnMachine(cluster))
    phases = {name: pod["status"]["phase"] for name, pod in sorted(job.pods().items())}
    before = job.log(_chief(job))
    said = before.strip().splitlines()[-1:]
    told = f"no change for {STILL_SECONDS:.0f} s; pods {phases}; the chief's last line {said}"
    try:
        (process,) = faults.kill(
            job.namespace, _chief(job), container="tensorflow", number=signal.SIGUSR2
        )
    except ClusterError as error:
        return f"{told}; its process is not there: {error}"
    state = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    time.sleep(2)
    # The main thread is the last that is told of.
    frames = [line.strip() for line in job.log(_chief(job))[len(before) :].splitlines()]
    main = frames[_last(frames, "most recent call first") :][: _FRAMES + 1]
    return f"{told}; its process is in state {state}, at {main}"


def _last(lines: list[str], words: str) -> int:
    return max((at for at, line in enumerate(lines) if words in line), default=0)


def _chief(job: RunningJob) -> str:
    return f"{job.name}-chief-0"
