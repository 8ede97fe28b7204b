# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is seen of a job, folded into its RunRecord; pure.

Called once a tick while the job runs and once when it has ended. The record only grows: a
coordinator that was replaced and begins its own account anew takes nothing away from it.

Of a long run neighbouring windows that say the same become one. What lies between the first eighth
and the last quarter is packed: the newest windows, to which a throughput model is fitted, stay as
they were measured. Steps, samples and time blocked by saves are summed, so that a record says as
much of the whole run as before, only less finely; a slow window among others goes under in them.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from rover_kf.api import names
from rover_kf.api.data import DataStatus
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.faults.hang_reports import Hang
from rover_kf.api.faults.node_check_messages import NodeCheckReport
from rover_kf.api.jobs import Event, ObservedJob
from rover_kf.api.records import JobSignature, ProgressSample, RunRecord, ServerSetup
from rover_kf.api.samples import Goodput, Throughput
from rover_kf.api.status import CoordinatorStatus

SAME_BATCH = 0.05
"""Log ratio up to which two global batches are the same: an epoch's last one is smaller."""
GAP_WEIGHT = 10
"""What a second between two windows counts, in which nobody trained steadily."""


def downsample(windows: tuple[Throughput, ...], max_windows: int) -> tuple[Throughput, ...]:
    """Return at most so many.

    Where no two neighbours are of one world and batch, the oldest of the world with the most
    windows is dropped. Each that is too many costs a pass over all: for some at a time.
    """
    kept = list(windows)
    edge = max_windows // 8
    while len(kept) > max_windows:
        middle = range(edge, len(kept) - 2 * edge)
        pairs = [i for i in middle[:-1] if _can_merge(kept[i], kept[i + 1])]
        if pairs:
            best = min(pairs, key=lambda i: _distance(kept[i], kept[i + 1]))
            kept[best : best + 2] = [_merge_windows(kept[best], kept[best + 1])]
            continue
        counts = collections.Counter(_world(window) for window in kept)
        del kept[max(middle, key=lambda i: (counts[_world(kept[i])], -i))]
    return tuple(kept)


def _world(window: Throughput) -> tuple[int, int]:
    return window.nodes, window.world_size


def _can_merge(left: Throughput, right: Throughput) -> bool:
    ratio = _batch(left) / _batch(right)
    return _world(left) == _world(right) and abs(math.log(ratio)) <= SAME_BATCH


def _distance(left: Throughput, right: Throughput) -> float:
    """Seconds that both would last as one, more where time lies between."""
    gap = max(0.0, right.started_at - left.ended_at)
    return right.ended_at - left.started_at + GAP_WEIGHT * gap


def _batch(window: Throughput) -> float:
    # A trainer that does not tell its samples is reckoned in steps.
    return window.global_batch or 1.0


def _merge_windows(left: Throughput, right: Throughput) -> Throughput:
    """Both as one, at the pace of the one with more steps: as a median, it is that of most."""
    most = left if left.steps >= right.steps else right
    steps, samples = left.steps + right.steps, left.samples + right.samples
    seconds = [window.ended_at - window.started_at for window in (left, right)]
    share = seconds[0] / sum(seconds) if sum(seconds) > 0 else 0.5
    return Throughput(
        started_at=left.started_at,
        ended_at=right.ended_at,
        nodes=left.nodes,
        world_size=left.world_size,
        steps=steps,
        samples=samples,
        step_seconds=most.step_seconds,
        global_batch=samples / steps if samples and steps else most.global_batch,
        wait_fraction=share * left.wait_fraction + (1 - share) * right.wait_fraction,
        save_seconds=left.save_seconds + right.save_seconds,
    )


T = TypeVar("T", Event, ScaleDecision)

RUNNING, SUCCEEDED, FAILED, DELETED = "running", "succeeded", "failed", "deleted"

MAX_CHECKS = 4
"""Of nodes; the newest."""
MAX_HANGS = 8
"""The newest; each may hold many stacks."""
MAX_SETUPS = 32
"""Of workers and parameter servers; the newest."""
MAX_DATA, MAX_POISON = 64, 64
"""Data sets, and what was set aside of each; the newest."""
MAX_WINDOWS, MAX_EVENTS, MAX_DECISIONS = 256, 1024, 256
"""Beyond these what lies between the first eighth and the last quarter is thinned, evenly in time:
windows are packed, and those Events go first that tell of no trouble and no new
world, those decisions first that are to stay. A controller has the records of all running jobs in
its memory."""
LASTING = (names.EVENT_WORLD_FORMED, names.EVENT_SCALED, names.EVENT_FINISHED)
"""Events that stay as long as warnings do."""
MAX_SAMPLES = 128
"""Beyond these every other one goes, and the distance doubles."""


def new_record(
    job: ObservedJob,
    *,
    signature: JobSignature,
    requested: Mapping[str, float],
    every: int,
    storage: str = "",
) -> RunRecord:
    """Return the record of a job that is seen for the first time; storage is empty for none."""
    return RunRecord(
        uid=job.uid,
        signature=signature,
        started_at=job.created_at,
        updated_at=job.created_at,
        outcome=RUNNING,
        requested=dict(requested),
        peak={},
        checkpoint_every=every,
        storage=storage,
    )


def update(
    record: RunRecord,
    job: ObservedJob,
    status: CoordinatorStatus | None,
    *,
    decision: ScaleDecision | None = None,
    events: Iterable[Event] = (),
    memory_raised: float = 0.0,
    memory_limit: float = 0.0,
    servers: ServerSetup | None = None,
) -> RunRecord:
    """Return the record with what one look at the job adds; equal to it if that is nothing.

    Events are our own, as the coordinator's are in its status. ``memory_raised`` is 0 if the
    trainer's limit never was raised, ``memory_limit`` if there is none, or it is not known.
    """
    if status is not None:
        record = _with_status(record, status)
        record = _with_setup(record, servers, status.now)
        looks = _with_sample(record.looks, status, memory_limit)
        record = dataclasses.replace(record, looks=looks)
    new = (*(status.events if status is not None else ()), *events)
    known = {_identity(event) for event in record.events}
    # The coordinator's may come twice: as it told them, and as they were put on the job.
    fresh = {_identity(event): event for event in new if _identity(event) not in known}
    merged = sorted((*record.events, *fresh.values()), key=lambda event: event.at)
    outcome = {"Succeeded": SUCCEEDED, "Failed": FAILED}.get(job.phase, RUNNING)
    return dataclasses.replace(
        record,
        outcome=outcome,
        events=_thin(
            tuple(merged), MAX_EVENTS, lambda event: event.warning or event.reason in LASTING
        )
        if fresh
        else record.events,
        decisions=_with_decision(record.decisions, decision),
        memory_raised=max(record.memory_raised, memory_raised),
    )


def stamp(record: RunRecord, now: float) -> RunRecord:
    """The record stamped with the time it is written."""
    return dataclasses.replace(record, updated_at=now)


def mark_deleted(record: RunRecord, now: float) -> RunRecord:
    """The record of a job that was deleted before it ended."""
    return dataclasses.replace(record, outcome=DELETED, updated_at=now)


def _with_status(record: RunRecord, status: CoordinatorStatus) -> RunRecord:
    # Those before the newest were seen; some of them were packed and are not to come back.
    newest = record.windows[-1].ended_at if record.windows else 0.0
    fresh = tuple(window for window in status.windows if window.ended_at > newest)
    record = _with_goodput(record, status.goodput, status.account_from)
    mean_save = status.save_seconds / status.saves if status.saves else record.save_seconds
    return dataclasses.replace(
        record,
        windows=downsample((*record.windows, *fresh), MAX_WINDOWS) if fresh else record.windows,
        steps=max(record.steps, status.step),
        peak=_with_peak(record.peak, status),
        total_steps=record.total_steps if status.total_steps is None else status.total_steps,
        snapshot_bytes=max(record.snapshot_bytes, status.snapshot_bytes),
        replicated=record.replicated if status.replicated is None else status.replicated,
        save_seconds=mean_save,
        restart_seconds=status.restart_seconds or record.restart_seconds,
        restarts=max(record.restarts, status.restarts),
        verdict=status.verdict or record.verdict,
        hangs=_with_hangs(record.hangs, status.hangs),
        preflights=_with_check(record.preflights, status.preflight),
        data=_with_data(record.data, status.data),
        storage_rate=status.storage_rate or record.storage_rate,
    )


def _with_sample(
    kept: tuple[ProgressSample, ...], status: CoordinatorStatus, memory_limit: float
) -> tuple[ProgressSample, ...]:
    """One more, unless the last one is newer than the distance that so long a run has."""
    trend = status.memory_trend
    look = ProgressSample(
        at=status.now,
        step=status.step,
        samples_per_second=status.samples_per_second,
        sealed_step=status.sealed_step,
        durable_step=status.durable_step,
        memory=trend.memory if trend is not None else 0.0,
        memory_limit=memory_limit,
    )
    if kept and (look.at - kept[-1].at) * MAX_SAMPLES <= look.at - kept[0].at:
        return kept
    whole = (*kept, look)
    return whole if len(whole) <= MAX_SAMPLES else whole[::2]


def _with_setup(record: RunRecord, setup: ServerSetup | None, now: float) -> RunRecord:
    """The record with one more setup, if it is another one than the last."""
    if setup is None:
        return record
    last = record.servers[-1] if record.servers else None
    if last is not None and dataclasses.replace(setup, since=last.since) == last:
        return record
    new = dataclasses.replace(setup, since=now if last is not None else 0.0)
    return dataclasses.replace(record, servers=(*record.servers, new)[-MAX_SETUPS:])


def _with_peak(kept: dict[str, float], status: CoordinatorStatus) -> dict[str, float]:
    """Worst of all looks; what nobody has told of is left out."""
    told = {"memory": status.memory_peak, "cpu": status.cpu_peak}
    worst = {name: max(kept.get(name, 0.0), value) for name, value in told.items() if value}
    return {**kept, **worst}


def _with_check(
    kept: tuple[NodeCheckReport, ...], new: NodeCheckReport | None
) -> tuple[NodeCheckReport, ...]:
    if new is None or any(check.at == new.at for check in kept):
        return kept
    return (*kept, new)[-MAX_CHECKS:]


def _with_data(kept: tuple[DataStatus, ...], new: tuple[DataStatus, ...]) -> tuple[DataStatus, ...]:
    """The newest of each data set; what was set aside in rounds that are over stays told."""
    known = {data.name: data for data in kept}
    for data in new:
        before = known[data.name].poison if data.name in known else ()
        fresh = tuple(poison for poison in data.poison if poison not in before)
        poison = (*before, *fresh)[-MAX_POISON:]
        known[data.name] = dataclasses.replace(data, poison=poison)
    return tuple(known.values())[-MAX_DATA:]


def _with_hangs(kept: tuple[Hang, ...], new: tuple[Hang, ...]) -> tuple[Hang, ...]:
    known = {(hang.at, hang.round) for hang in kept}
    fresh = tuple(hang for hang in new if (hang.at, hang.round) not in known)
    return (*kept, *fresh)[-MAX_HANGS:]


def _with_goodput(record: RunRecord, spent: Goodput, begun: float) -> RunRecord:
    """The record with what an account says; an account is known by when it was begun."""
    before, known = record.account_before, record.account_from
    if known and begun > known:
        covered = known + record.goodput.total - before.total
        # The pod with the account went, and another took its place: nobody trained meanwhile.
        lost = Goodput(recovery=max(begun - covered, 0.0))
        before = record.goodput.plus(lost)
    elif known and begun < known:
        return record
    whole = before.plus(spent)
    if begun == known and whole.total < record.goodput.total:
        return record
    return dataclasses.replace(record, goodput=whole, account_from=begun, account_before=before)


def _with_decision(
    kept: tuple[ScaleDecision, ...], decision: ScaleDecision | None
) -> tuple[ScaleDecision, ...]:
    """Of decisions to stay between two actions, two of a kind are kept; actions go last of all."""
    if decision is None or (kept and kept[-1] == decision):
        return kept
    if decision.action == "stay":
        alike = []
        for index in range(len(kept) - 1, -1, -1):
            if kept[index].action != "stay":
                break
            if _kind(kept[index]) == _kind(decision):
                alike.append(index)
        if len(alike) > 1:
            kept = (*kept[: alike[0]], *kept[alike[0] + 1 :])
    if decision.applied and kept and _is_same_decision(kept[-1], decision):
        kept = kept[:-1]
    return _thin((*kept, decision), MAX_DECISIONS, lambda choice: choice.action != "stay")


def _kind(decision: ScaleDecision) -> str:
    """The reason without its numbers."""
    return re.sub(r"[\d.]+", "#", decision.reason)


def _is_same_decision(left: ScaleDecision, right: ScaleDecision) -> bool:
    return (left.at, left.action, left.target) == (right.at, right.action, right.target)


def _identity(event: Event) -> tuple[object, ...]:
    return event.reason, event.message, event.at, event.source


def _thin(items: tuple[T, ...], max_items: int, rank: Callable[[T], bool]) -> tuple[T, ...]:
    """Return at most so many, without those of the middle that have their neighbours nearest.

    Those go first for which the rank is false.
    """
    kept = list(items)
    edge = max_items // 8
    while len(kept) > max_items:
        middle = range(edge, len(kept) - 2 * edge)
        del kept[min(middle, key=lambda i: (rank(kept[i]), kept[i + 1].at - kept[i - 1].at))]
    return tuple(kept)
