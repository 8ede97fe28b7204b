# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Folding looks at a job into its record."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

from rover_kf.api.data import DataStatus, PoisonedShard, SlotSpan
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.faults.hang_reports import Hang
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.api.records import JobSignature
from rover_kf.api.samples import Goodput, Throughput
from rover_kf.api.status import CoordinatorStatus
from rover_kf.history import recorder

JOB = ObservedJob(
    JobKey("team", "digits"), "u1", "1", {"metadata": {}}, {"worker": 2}, "Running", created_at=5.0
)
SIGNATURE = JobSignature("team", "digits", "PyTorchJob", "img", "python t.py", 1, 0)


def status(**changes):
    made = CoordinatorStatus(
        job="digits",
        phase="training",
        round=1,
        nodes=2,
        expected_nodes=2,
        world_size=2,
        step=100,
        total_steps=500,
        sealed_step=90,
        durable_step=50,
        samples_per_second=10.0,
        restarts=1,
        windows=(window(0), window(1)),
        goodput=Goodput(waiting=3, productive=50),
        events=(Event("WorldFormed", "", at=9.0, sequence=1),),
        started_at=5.0,
        now=60.0,
        restart_seconds=0.5,
        saves=10,
        save_seconds=0.2,
        snapshot_bytes=1000,
        replicated=False,
    )
    return dataclasses.replace(made, **changes)


def window(i):
    return Throughput(10.0 * i, 10.0 * i + 10, 2, 2, 10, 640, 1.0, 64.0)


def decision(at, action="stay", **changes):
    return ScaleDecision(at, action, 2, 3, f"because {at}", 1, 2, 1, **changes)


def data(name, done, *poison):
    shards = tuple(PoisonedShard(SlotSpan("", begin, begin + 1), 3, "broken") for begin in poison)
    return DataStatus(name, 0, 1, 100, done, 0, len(poison), 1.0, poison=shards)


def begun():
    return recorder.new_record(JOB, signature=SIGNATURE, requested={"replicas": 2.0}, every=10)


def test_look_is_folded_in():
    """Steps, windows, events, save cost and goodput are taken over; a mean is a mean."""
    found = recorder.update(begun(), JOB, status())
    assert (found.steps, found.total_steps, found.restarts) == (100, 500, 1)
    assert found.windows == (window(0), window(1))
    assert found.save_seconds == 0.02
    assert (found.snapshot_bytes, found.replicated) == (1000, False)
    assert found.goodput.productive == 50
    assert [event.reason for event in found.events] == ["WorldFormed"]


def test_same_look_twice_changes_nothing():
    """Idempotent: windows and events are known by themselves, not by counting."""
    once = recorder.update(begun(), JOB, status(), decision=decision(1.0))
    assert recorder.update(once, JOB, status(), decision=decision(1.0)) == once


def test_new_coordinator_takes_nothing_away():
    """A replaced first pod begins its account at nought: the record keeps what it had."""
    old = recorder.update(begun(), JOB, status())
    fresh = status(
        step=90,
        restarts=0,
        windows=(window(7),),
        goodput=Goodput(productive=1),
        events=(),
        saves=0,
        save_seconds=0.0,
        snapshot_bytes=0,
        replicated=None,
        restart_seconds=0.0,
        total_steps=None,
    )
    found = recorder.update(old, JOB, fresh)
    assert found.windows == (window(0), window(1), window(7))
    assert dataclasses.replace(found, windows=old.windows) == old


def test_accounts_of_replaced_pods_add_up():
    """One account only grows; of two the sum is kept, with what lay between them as recovery."""
    first = status(goodput=Goodput(waiting=10, productive=30), account_from=100.0)
    found = recorder.update(begun(), JOB, first)
    later = status(goodput=Goodput(waiting=10, productive=50), account_from=100.0)
    found = recorder.update(found, JOB, later)
    assert recorder.update(found, JOB, first).goodput == found.goodput
    second = status(goodput=Goodput(productive=5), account_from=175.0)
    found = recorder.update(found, JOB, second)
    assert found.goodput == Goodput(waiting=10, productive=55, recovery=15)
    assert found.goodput.total == 175.0 + 5 - 100.0
    assert recorder.update(found, JOB, later).goodput == found.goodput
    grown = status(goodput=Goodput(productive=8, redone=1), account_from=175.0)
    found = recorder.update(found, JOB, grown)
    assert found.goodput == Goodput(waiting=10, productive=58, recovery=15, redone=1)


def test_hangs_are_kept_once():
    """Each with its stacks, the newest eight."""
    every = [Hang(float(at), 1, 5, 301.0, 300.0, True, "", ()) for at in range(10)]  # noqa: FBT003
    found = recorder.update(begun(), JOB, status(hangs=tuple(every[:4])))
    found = recorder.update(found, JOB, status(hangs=tuple(every[2:6])))
    assert found.hangs == tuple(every[:6])
    found = recorder.update(found, JOB, status(hangs=tuple(every[6:])))
    assert found.hangs == tuple(every[2:])


def test_stays_in_a_row_are_two():
    """Of many decisions to stay, the first and the newest; an action is never dropped."""
    found = begun()
    for at in range(1, 20):
        kind = "scale" if at == 10 else "stay"
        found = recorder.update(found, JOB, None, decision=decision(float(at), kind))
    assert [item.at for item in found.decisions] == [1, 9, 10, 11, 19]


def test_changes_stay_where_reasons_to_stay_are_too_many():
    """However many reasons there are: what was done goes last."""
    found = begun()
    for at in range(1, 400):
        made = decision(float(at), "stay" if at % 50 else "scale")
        made = dataclasses.replace(made, reason="because " + "o" * at)
        found = recorder.update(found, JOB, None, decision=made)
    assert len(found.decisions) == recorder.MAX_DECISIONS
    actions = [item.at for item in found.decisions if item.action != "stay"]
    assert actions == list(range(50, 400, 50))


def test_applied_decision_replaces_its_intention():
    """The decision is first intended and then applied: one entry, applied."""
    found = recorder.update(begun(), JOB, None, decision=decision(1.0, "scale"))
    found = recorder.update(found, JOB, None, decision=decision(1.0, "scale", applied=True))
    assert [item.applied for item in found.decisions] == [True]


def test_outcome_follows_the_operator():
    """Only the Training Operator's word ends a run; deletion is its own outcome."""
    assert recorder.update(begun(), JOB, status()).outcome == "running"
    done = dataclasses.replace(JOB, phase="Succeeded")
    assert recorder.update(begun(), done, None).outcome == "succeeded"
    assert recorder.mark_deleted(begun(), 9.0).outcome == "deleted"


def test_record_is_bounded():
    """A week of windows and events keeps its beginning and its end."""
    found = begun()
    for i in range(0, 6000, 50):
        rows = tuple(window(j) for j in range(i, i + 50))
        events = tuple(Event("CheckpointDurable", "", at=float(j)) for j in range(i, i + 50))
        found = recorder.update(found, JOB, status(windows=rows, events=events))
    assert len(found.windows) <= recorder.MAX_WINDOWS
    assert len(found.events) <= recorder.MAX_EVENTS
    assert (found.windows[0], found.windows[-1]) == (window(0), window(5999))
    assert sum(row.steps for row in found.windows) == 60_000, "they are packed, not left out"


def test_a_long_run_is_known_evenly():
    """What is kept of a week is no further apart than twice its even share, and no failure goes
    while there are Events that tell of none."""
    found, every = begun(), 60.0
    for i in range(4_000):
        at = every * i
        rows = (dataclasses.replace(window(0), started_at=at, ended_at=at + every),)
        events = [Event("CheckpointDurable", "", at=at)]
        if i % 16 == 0:
            events.append(Event("TrainingProcessFailed", f"rank {i}", warning=True, at=at))
        now = status(windows=rows, events=tuple(events), now=at, step=i)
        found = recorder.update(found, JOB, now, memory_limit=7.0)
    looks = [look.at for look in found.looks]
    assert 60 <= len(looks) <= recorder.MAX_SAMPLES
    assert all(later - sooner < every * 4_000 / 25 for sooner, later in pairwise(looks))
    assert found.looks[-1].memory_limit == 7.0
    ends = [row.ended_at for row in found.windows]
    assert max(later - sooner for sooner, later in pairwise(ends)) < every * 4_000 / 60
    failures = [event for event in found.events if event.warning]
    assert len(failures) == 250


def test_an_event_is_recorded_once():
    """Also one that the coordinator tells and that was put on the job in the same look."""
    told = Event("WorldFormed", "round 1", at=9.0, sequence=1, source="digits-worker-0")
    own = Event("Scaled", "2 -> 3", at=9.5)
    found = recorder.update(begun(), JOB, status(events=(told,)), events=(told, own))
    assert found.events == (told, own)
    assert recorder.update(found, JOB, status(events=(told,)), events=(own,)).events == (told, own)


def test_peaks_of_use_only_grow():
    """The worst that any look told, of memory and cores; nothing where nobody tells."""
    assert recorder.update(begun(), JOB, status()).peak == {}
    first = recorder.update(begun(), JOB, status(memory_peak=3e9, cpu_peak=1.5))
    assert first.peak == {"memory": 3e9, "cpu": 1.5}
    assert recorder.update(first, JOB, status(memory_peak=1e9, cpu_peak=2.5)).peak == {
        "memory": 3e9,
        "cpu": 2.5,
    }


def test_how_far_data_were_read_is_kept():
    """The newest of each data set; what was set aside before a round ended stays."""
    seen = begun()
    for told in ((data("train", 40, 7), data("clicks", 5)), (), (data("train", 30, 7, 8),)):
        seen = recorder.update(seen, JOB, status(data=told))
    assert {each.name: each.done for each in seen.data} == {"train": 30, "clicks": 5}
    assert [poison.span.begin for poison in seen.data[0].poison] == [7, 8]
