# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The digits sample under scripts/journaled.py: what its ranks did, and what was told of it."""

from __future__ import annotations

import pathlib
from typing import Any

from chaos import journal

from testcluster import jobs
from testcluster.jobs import RunningJob
from testcluster.objects import Object
from tests.support.waiting import eventually


def made(namespace: str, *options: str, pods: int = 3, fewest: int = 1) -> Object:
    """A job that trains until it is deleted; its size is not changed.

    Args:
        namespace: where it goes.
        options: of digits.py.
        pods: that it has.
        fewest: that may train alone.
    """
    job = jobs.digits(namespace, "--steps", "100000", *options, traced=False)
    job["metadata"]["annotations"] |= {"rover-kf.io/scaling.mode": "off"}
    job["spec"]["elasticPolicy"] = {"minReplicas": fewest, "maxReplicas": pods}
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["replicas"] = pods
    container = worker["template"]["spec"]["containers"][0]
    program, *given = container["command"]
    container["command"] = [program, "/tools/journaled.py", *given]
    return job


def trains_with(
    folder: pathlib.Path, size: int, *, after: float = 0.0, within: float = 150.0
) -> float:
    """When every rank of a world of that size first ended a step; waits for it.

    Args:
        folder: behind the job's claim.
        size: ranks of the world.
        after: steps before that, by the journal's clock, do not count.
        within: seconds.
    """

    def first() -> float:
        lines = [
            line
            for line in journal.read(folder / "journal")
            if line.world == size and line.at > after and line.verb == "stepped"
        ]
        by_rank = {rank: [line.at for line in lines if line.rank == rank] for rank in range(size)}
        return max(min(times) for times in by_rank.values()) if all(by_rank.values()) else 0.0

    return eventually(first, within=within, every=0.1, what=f"steps of {size} ranks")


def newest(folder: pathlib.Path) -> tuple[float, int]:
    """Time of the last line, and the newest step."""
    steps = [line for line in journal.read(folder / "journal") if line.verb == "stepped"]
    return steps[-1].at, max(line.step for line in steps)


def resumed(folder: pathlib.Path, after: float) -> list[journal.Line]:
    """Restores since then."""
    lines = journal.read(folder / "journal")
    return [line for line in lines if line.verb == "restored" and line.at > after]


def answer(job: RunningJob) -> dict[str, Any]:
    """The coordinator's status; waits for one that is answered."""
    return eventually(job.status, within=60, every=0.3, what="an answer of the coordinator")


def eventually_told(job: RunningJob, reason: str, text: str, *, within: float = 60.0) -> str:
    """The first message of that reason with that text; waits for it."""
    return eventually(
        lambda: next((message for message in job.told(reason) if text in message), ""),
        within=within, every=0.3, what=f"an Event {reason} with {text!r}",
    )  # fmt: skip
