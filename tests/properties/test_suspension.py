# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""When a job is suspended: after every course of its pods, and only then."""

from __future__ import annotations

import dataclasses

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rover_kf.api import names
from rover_kf.api.jobs import JobKey, ObservedJob, Pod
from rover_kf.api.policy import FailurePolicy, PolicySections
from rover_kf.reconcilers.plan import Observed, PatchJob, ReconcilePlan, suspend_spec
from rover_kf.reconcilers.policies import suspend_policy
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling.policy import AutoscalingPolicy

KEY = JobKey("team", "digits")
FEWEST, AFTER = 2, 100.0
quiet = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
looks = st.lists(st.tuples(st.floats(0.5, 80.0), st.integers(0, 3)), min_size=1, max_size=30)
"""Seconds since the last look, and how many pods can train now."""


def job(*, suspended=False, labels=None):
    manifest = {"metadata": {"name": "digits", "labels": labels or {}}, "spec": {}}
    return ObservedJob(KEY, "u", "1", manifest, {"worker": 3}, "Running", suspended=suspended)


def pods(able):
    running = [
        Pod(f"digits-worker-{i}", f"u{i}", "worker", i, ("Running", "Pending")[i % 2], node="n1")
        for i in range(able)
    ]
    waits = [
        Pod(f"digits-worker-{i}", f"u{i}", "worker", i, "Pending", unschedulable="full")
        for i in range(able, 3)
    ]
    return (*running, *waits)


def look(memory, able, now, *, after=AFTER, given=None):
    sections = PolicySections(failures=FailurePolicy(suspend_after=after))
    policy = AutoscalingPolicy(min=FEWEST, max=3, sections=sections)
    seen = Observed(given or job(), pods(able), None, policy)
    made = suspend_policy.apply(ReconcilePlan((), memory), seen, now)
    done = any(
        isinstance(effect, PatchJob) and effect.spec == suspend_spec(seen.job)
        for effect in made.effects
    )
    return made.status, done, made


@quiet
@given(looks, st.booleans(), st.booleans())
def test_suspended_after_the_time_below_and_never_else(course, durable, sealed):
    """At the first look at which it has been below for the time in one go, if no more than what is
    on storage goes on; its annotation then says why. What it holds resets with every recovery."""
    memory = JobStatus(sealed_step=70 if sealed else None, durable_step=60 if durable else None)
    now, below = 1000.0, None
    for seconds, able in course:
        now += seconds
        below = None if able >= FEWEST else below if below is not None else now
        memory, done, made = look(memory, able, now)
        due = below is not None and now - below >= AFTER and (durable or not sealed)
        assert done == due
        assert memory.below_since == (0.0 if done or below is None else below)
        if done:
            assert f"{able} of at least {FEWEST} pods" in memory.suspended
            assert "runPolicy.suspend: false" in memory.suspended
            assert ("from step 60" in memory.suspended) == durable
            assert made.collect_events()[-1].reason == names.EVENT_SUSPENDED
            return


@quiet
@given(looks)
def test_never_without_the_policy_or_anothers_consent(course):
    """The default suspends nothing; nor is a job that Kueue admits ours to suspend; one look more
    on a suspended, finished or ending job changes nothing."""
    queued = job(labels={"kueue.x-k8s.io/queue-name": "q"})
    memory = {"default": JobStatus(), "queued": JobStatus(), "suspended": JobStatus()}
    now, told = 1000.0, 0
    for seconds, able in course:
        now += seconds
        for name, after, given_job in (
            ("default", 0.0, job()),
            ("queued", AFTER, queued),
            ("suspended", AFTER, job(suspended=True)),
        ):
            memory[name], done, made = look(memory[name], able, now, after=after, given=given_job)
            assert not done
            told += name == "queued" and len(made.collect_events())
    assert memory["default"] == memory["suspended"] == JobStatus()
    episodes = 1 + sum(able >= FEWEST for _, able in course)
    assert told <= episodes, "the reason is told once a time below"


@quiet
@given(st.floats(1.0, 1e9), st.floats(0.0, 1e9))
def test_resumed_is_a_new_beginning(since, now):
    """Who resumes the job finds neither the old reason nor the old clock."""
    old = JobStatus(below_since=since, suspended="suspended: 1 of 2", durable_step=5)
    memory, done, _ = look(old, FEWEST, now)
    assert (memory.below_since, memory.suspended, done) == (0.0, "", False)
    held, _, _ = look(old, 0, now, given=job(suspended=True))
    assert held == dataclasses.replace(old, below_since=0.0)
