# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Records of runs as large as they come, put together by the recorder from what it would see."""

from __future__ import annotations

import dataclasses

from rover_kf.api.data import DataStatus, PoisonedShard, SlotSpan, WorkerShare
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.faults.hang_reports import Hang, StackGroup
from rover_kf.api.faults.limit_raises import MemoryTrend
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.api.samples import Goodput, Throughput
from rover_kf.api.status import CoordinatorStatus
from rover_kf.history import recorder

BEGIN = 1_700_000_000.0
WEEK = 7 * 86400.0
GIB = float(1 << 30)


def run_record(
    *, ranks: int, seconds: float, every: float, failures: int, outcome: str = "Succeeded"
) -> RunRecord:
    """A run that was looked at from its begin to its end.

    Args:
        ranks: at most; half of them in the first third.
        seconds: that it takes.
        every: seconds between two looks.
        failures: spread evenly, each of another rank.
        outcome: the Training Operator's last word.
    """
    job = ObservedJob(
        JobKey("team", "llm"), "u1", "1", {"metadata": {}}, {"worker": ranks}, "Running",
        created_at=BEGIN,
    )  # fmt: skip
    signature = JobSignature("team", "llm", "PyTorchJob", "trainer:1", "python train.py", 1, 1)
    requested = {"replicas": float(ranks), "memory": 8 * GIB, "cpu": 4.0}
    record = recorder.new_record(job, signature=signature, requested=requested, every=10)
    looks = int(seconds / every)
    for number in range(1, looks + 1):
        now = BEGIN + number * every
        world = ranks // 2 if number < looks / 3 else ranks
        failed = int(number * failures / looks) > int((number - 1) * failures / looks)
        decision = _decision(number, looks, ranks, now)
        status = _status(number, looks, world, every, now, failed=failed)
        last = dataclasses.replace(job, phase=outcome) if number == looks else job
        record = recorder.update(
            record, last, status, decision=decision, memory_limit=10 * GIB,
            memory_raised=10 * GIB if number > looks / 2 else 0.0,
        )  # fmt: skip
    return recorder.stamp(record, BEGIN + seconds)


def _decision(number: int, looks: int, ranks: int, now: float) -> ScaleDecision | None:
    if number == looks // 3:
        why = f"{ranks // 2} -> {ranks} pays for itself"
        return ScaleDecision(
            now, "scale", ranks // 2, ranks, why, 8.0 * ranks, 14.0 * ranks, 20.0, applied=True
        )
    if number % 50 == 0:
        return ScaleDecision(now, "stay", ranks, ranks, "no size is better", 1.0, 1.0, 20.0)
    return None


def _status(
    number: int, looks: int, world: int, every: float, now: float, *, failed: bool
) -> CoordinatorStatus:
    step = number * 40
    wave = 1 + 0.03 * ((number * 7) % 5 - 2)
    window = Throughput(
        now - every, now, world, world, 40, 640 * world, every / 40 * wave, 16.0 * world,
        save_seconds=0.004 * (1 + number % 4),
    )  # fmt: skip
    return CoordinatorStatus(
        job="llm", phase="training", round=1, nodes=world, expected_nodes=world, world_size=world,
        step=step, total_steps=looks * 40, sealed_step=step - 4,
        durable_step=step // 200 * 200 if step >= 200 else None,
        samples_per_second=window.samples_per_second,
        restarts=0, windows=() if failed else (window,),
        goodput=Goodput(30.0, every * number * 0.9 - 30, 5.0, every * number * 0.1 - 5),
        events=tuple(_events(number, looks, world, now, failed=failed)), started_at=BEGIN, now=now,
        account_from=BEGIN, restart_seconds=4.2, saves=number * 4, save_seconds=number * 0.01,
        snapshot_bytes=int(3.5 * GIB), memory_peak=9 * GIB, cpu_peak=3.7, hangs=_hangs(number, now),
        memory_trend=MemoryTrend((4 + 5 * number / looks) * GIB, 0.0, 0.5, 60.0),
        data=(_data(number, looks, world),),
    )  # fmt: skip


def _events(number: int, looks: int, world: int, now: float, *, failed: bool) -> list[Event]:
    found = []
    if number == 1 or number == (looks + 2) // 3:
        said = f"round {number}: {world} processes in {world} pods"
        found.append(Event("WorldFormed", said, at=now - 1, sequence=number * 8))
    if failed:
        rank = number * 13 % world
        said = f"rank {rank} in llm-worker-{rank}: killed: ended by SIGKILL"
        found.append(
            Event(
                "TrainingProcessFailed",
                said,
                warning=True,
                at=now - 0.9,
                sequence=number * 8 + 1,
                source="llm-worker-0",
            )
        )
        formed = f"round {number}: {world} processes in {world} pods"
        found.append(Event("WorldFormed", formed, at=now - 0.5, sequence=number * 8 + 2))
    if number % 5 == 0:
        said = f"step {number * 40} is durable in step-{number * 40}: {world} file(s)"
        found.append(Event("CheckpointDurable", said, at=now, sequence=number * 8 + 3))
    if number % (looks // 3) == 7:
        said = f"rank 3 in llm-worker-3 on node-{number} takes 0.5 s of a step by itself"
        found.append(Event("Straggler", said, warning=True, at=now, sequence=number * 8 + 4))
    return found


def _hangs(number: int, now: float) -> tuple[Hang, ...]:
    if number != 20:
        return ()
    group = StackGroup((2,), "S (sleeping)", "read (ssl.py:7)", late=True, text="in read")
    message = "no step for 301 s: rank 2 (llm-worker-2) did not arrive"
    return (Hang(now, 1, 800, 301.0, 300.0, restarted=True, message=message, stacks=(group,)),)


def _data(number: int, looks: int, world: int) -> DataStatus:
    poison = (PoisonedShard(SlotSpan("clicks/1", 32, 33), 3, "checksum differs"),)
    workers = tuple(WorkerShare(f"{rank}/p", number, 2) for rank in range(min(world, 64)))
    return DataStatus(
        "train", 0, 1, looks, number, world, 1, 12.5, 60.0, poison=poison, workers=workers
    )
