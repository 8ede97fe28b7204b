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
from rover_kf.launcher.event_loop import EventLoop
from rover_kf.launcher.worker_group import WorkerGroup
from rover_kf.launcher.zygote_client import CheckMeasured

LATE_SECONDS = 1.0
"""After a measurement's own end a process that has not ended is told of as such."""


def run_node_check(event_loop: EventLoop, worker_group: WorkerGroup, request: CheckRequest) -> str:
    """Take part in a check before training, if there is one; return why it was passed over."""
    while True:
        try:
            reply = event_loop.request(names.PATH_PREFLIGHT, request, CheckReply)
        except errors.InputError as error:  # a coordinator that knows no such thing
            return str(error)
        if reply.action == "measure" and reply.task is not None:
            result = _measure(event_loop, worker_group, request, reply.task)
            request = dataclasses.replace(request, result=result)
        elif reply.action == "wait":
            event_loop.pause(reply.pause)
        else:
            return ""


def _measure(
    event_loop: EventLoop, worker_group: WorkerGroup, request: CheckRequest, task: CheckTask
) -> CheckResult:
    variables = rank_env.network_variables(request.store_host, worker_group.inherited)
    processes = request.member.processes
    found: dict[int, Mapping[str, Any]] = {}
    until = time.monotonic() + task.seconds + LATE_SECONDS
    for local_rank in range(processes):
        one = {"local_rank": local_rank, "rank": task.rank + local_rank, "variables": variables}
        worker_group.zygote.check({**dataclasses.asdict(task), **one})
    try:
        while (
            sum(bool(one["done"]) for one in found.values()) < processes
            and (left := until - time.monotonic()) > 0
        ):
            event = event_loop.next_event(left)
            if isinstance(event, CheckMeasured) and event.result["round"] == task.round:
                found[event.result["local_rank"]] = event.result
    finally:
        worker_group.zygote.end_checks()
    return _combine(task, [found.get(rank, {}) for rank in range(processes)])


def _combine(task: CheckTask, results: list[Mapping[str, Any]]) -> CheckResult:
    """Of all processes of the pod; one that is not done hung or died."""
    silent = "" if all(one.get("done") for one in results) else "a process did not end in time"
    problems = [str(one.get("all_reduce_problem", "")) for one in results]
    alone = [str(one.get("matmul_problem", "")) for one in results]
    matmul, reduced = (
        [one[key] for one in results if key in one]
        for key in ("matmul_seconds", "all_reduce_seconds")
    )
    hung_alone = task.alone and len(matmul) < len(results)
    return CheckResult(
        check=task.check,
        round=task.round,
        device=next((str(one["device"]) for one in results if "device" in one), ""),
        matmul_seconds=max(matmul) if matmul and len(matmul) == len(results) else None,
        all_reduce_seconds=max(reduced) if reduced and len(reduced) == len(results) else None,
        matmul_problem=next((p for p in alone if p), f"a matmul: {silent}" if hung_alone else ""),
        all_reduce_problem=next((p for p in problems if p), silent),
    )
