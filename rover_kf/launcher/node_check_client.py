# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The launcher's part in a check of its node: it asks, has measured, tells, until it may join."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.faults.node_check_messages import (
    CheckReply,
    CheckRequest,
    CheckResult,
    CheckTask,
)
from rover_kf.launcher import rank_env
from rover_kf.launcher.event_loop import Errands
from rover_kf.launcher.worker_group import Crew
from rover_kf.launcher.zygote_client import Checked

LATE_SECONDS = 1.0
"""After a measurement's own end a process that has not ended is told of as such."""


def pass_check(errands: Errands, crew: Crew, request: CheckRequest) -> str:
    """Take part in a check if there is one; returns when training may begin.

    Args:
        errands: events and requests.
        crew: that forks the processes which measure.
        request: with the pod and the store that its partners meet at.

    Returns:
        Why the check was passed over; empty if it was not.
    """
    while True:
        try:
            reply = errands.ask(names.PATH_PREFLIGHT, request, CheckReply)
        except errors.InputError as error:  # a coordinator that knows no such thing
            return str(error)
        if reply.action == "measure" and reply.task is not None:
            result = _measure(errands, crew, request, reply.task)
            request = dataclasses.replace(request, result=result)
        elif reply.action == "wait":
            errands.pause(reply.pause)
        else:
            return ""


def _measure(errands: Errands, crew: Crew, request: CheckRequest, task: CheckTask) -> CheckResult:
    variables = rank_env.network(request.store_host, crew.inherited)
    processes = request.member.processes
    found: dict[int, Mapping[str, Any]] = {}
    until = time.monotonic() + task.seconds + LATE_SECONDS
    for local_rank in range(processes):
        one = {"local_rank": local_rank, "rank": task.rank + local_rank, "variables": variables}
        crew.nursery.check({**dataclasses.asdict(task), **one})
    try:
        while not _all_done(found, processes) and (left := until - time.monotonic()) > 0:
            event = errands.next_event(left)
            if isinstance(event, Checked) and event.told["round"] == task.round:
                found[event.told["local_rank"]] = event.told
    finally:
        crew.nursery.end_checks()
    return _worst(task, [found.get(rank, {}) for rank in range(processes)])


def _all_done(found: Mapping[int, Mapping[str, Any]], processes: int) -> bool:
    return sum(bool(told["done"]) for told in found.values()) == processes


def _worst(task: CheckTask, told: list[Mapping[str, Any]]) -> CheckResult:
    """Of all processes of the pod; one that is not done hung or died."""
    silent = "" if all(one.get("done") for one in told) else "a process did not end in time"
    problems = [str(one.get("all_reduce_problem", "")) for one in told]
    alone = [str(one.get("matmul_problem", "")) for one in told]
    matmul, reduced = (
        [one[key] for one in told if key in one] for key in ("matmul_seconds", "all_reduce_seconds")
    )
    hung_alone = task.alone and len(matmul) < len(told)
    return CheckResult(
        check=task.check,
        round=task.round,
        device=next((str(one["device"]) for one in told if "device" in one), ""),
        matmul_seconds=max(matmul) if matmul and len(matmul) == len(told) else None,
        all_reduce_seconds=max(reduced) if reduced and len(reduced) == len(told) else None,
        matmul_problem=next((p for p in alone if p), f"a matmul: {silent}" if hung_alone else ""),
        all_reduce_problem=next((p for p in problems if p), silent),
    )
