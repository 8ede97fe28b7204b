# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job that a pipeline's step has launched, looked at until the step was silent for too long."""

from __future__ import annotations

import json

import pytest
from memory_cluster import KEY, Killed, MemoryCluster, manifest

from rover_kf.api import names
from rover_kf.reconcilers.reconciler import Reconciler


def made(clock, lost="suspend", lease="90s", labels=None):
    annotations = {
        f"{names.PREFIX}launch.lease": lease,
        f"{names.PREFIX}launch.on-lease-expired": lost,
        f"{names.PREFIX}scaling.mode": "off",
        f"{names.PREFIX}scaling.window": "200",
        names.LAUNCH_RENEWAL_ANNOTATION: "launch-7 1",
    }
    return MemoryCluster(clock, manifest(2, annotations=annotations, labels=labels))


def look(cluster, history):
    return Reconciler(cluster, history, clock=cluster.clock).run_once(KEY)


def renew(cluster, text):
    cluster.edit({"metadata": {"annotations": {names.LAUNCH_RENEWAL_ANNOTATION: text}}})


def suspended(cluster):
    return bool((cluster.manifest["spec"].get("runPolicy") or {}).get("suspend"))


def told(cluster, reason):
    return [event.message for event in cluster.events if event.reason == reason]


def remembered(cluster):
    return json.loads(cluster.manifest["metadata"]["annotations"][names.STATUS_ANNOTATION])


def test_a_silent_launcher_is_told_of_then_its_job_suspended(clock, history):
    """Two thirds of the lease are told, the whole suspends, each look saying when the next is due;
    who resumes the job has the whole lease."""
    cluster = made(clock)
    assert look(cluster, history).delay == 30.0
    clock.now += 50
    assert look(cluster, history).delay == 10.0
    assert not told(cluster, names.EVENT_LAUNCHER_SILENT)
    clock.now += 10
    assert look(cluster, history).delay == 30.0
    (message,) = told(cluster, names.EVENT_LAUNCHER_SILENT)
    assert message.startswith("the launching step launch-7 has been silent for 60 s; in 30 s")
    clock.now += 20
    look(cluster, history)
    assert not suspended(cluster)
    clock.now += 10
    look(cluster, history)
    assert suspended(cluster)
    (message,) = told(cluster, names.EVENT_LAUNCH_LEASE_EXPIRED)
    assert message.startswith("suspended: the launching step launch-7 was silent for 90 s")
    assert remembered(cluster)["suspended"] == message[:240]
    look(cluster, history)
    assert remembered(cluster)["launch"]["expired_at"] == clock.now

    clock.now += 1000
    cluster.edit({"spec": {"runPolicy": {"suspend": False}}})
    look(cluster, history)
    assert remembered(cluster)["launch"]["expired_at"] == 0.0
    clock.now += 89
    look(cluster, history)
    assert not suspended(cluster)


def test_a_launcher_that_counts_on_keeps_its_job(clock, history):
    """Also one that is late, and one whose place another step takes after the warning."""
    cluster = made(clock)
    for count in range(2, 6):
        look(cluster, history)
        clock.now += 70
        look(cluster, history)
        renew(cluster, f"launch-{7 + count // 4} {count}")
        look(cluster, history)
    assert len(told(cluster, names.EVENT_LAUNCHER_SILENT)) == 4
    assert not suspended(cluster)


def test_a_controller_that_was_away_gives_a_launcher_time(clock, history):
    """Both may have been cut off by the same outage: after it, a third of the lease is left."""
    cluster = made(clock)
    look(cluster, history)
    clock.now += 3600
    look(cluster, history)
    clock.now += 29
    look(cluster, history)
    assert not suspended(cluster)
    clock.now += 1
    look(cluster, history)
    assert suspended(cluster)


@pytest.mark.parametrize("refusal", ["", "pytorchjobs is forbidden: cannot delete"])
def test_a_job_is_deleted_where_policy_and_rights_allow(clock, history, refusal):
    """Without the right it stays suspended, and it is said once a line what gives the right."""
    cluster = made(clock, "delete")
    cluster.may_not = refusal
    for _ in range(5):
        look(cluster, history)
        clock.now += 60
    assert (cluster.manifest is None) is not refusal or suspended(cluster)
    assert bool(told(cluster, names.EVENT_NOT_DELETED)) is bool(refusal)
    if refusal:
        assert suspended(cluster)
        lines = [e for e in cluster.events if e.reason == names.EVENT_NOT_DELETED]
        assert "component `delete-lost`" in lines[0].message
        assert len(set(lines)) == 1
    else:
        assert cluster.manifest is None


@pytest.mark.parametrize("lost", ["suspend", "delete"])
def test_a_controller_may_die_at_any_call(clock, history, lost):
    """Whatever call is its last, the next one finishes: the job ends, and nothing earlier."""
    deaths = 0
    for at in range(1, 30):
        cluster = made(clock, lost)
        cluster.kill_at = at
        for _ in range(6):
            try:
                look(cluster, history)
            except Killed:
                deaths += 1
            clock.now += 60
        assert suspended(cluster) if lost == "suspend" else cluster.manifest is None, at
        cluster.manifest = None
        look(cluster, history)
    print(f"{deaths} deaths")
    assert deaths > 8


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"lease": "0"}, "no lease"),
        ({"lost": "keep"}, "kept"),
        ({"labels": {"kueue.x-k8s.io/queue-name": "team"}}, "another's"),
    ],
)
def test_a_job_that_is_to_be_kept_is(clock, history, given, what):
    """A lease of 0, on-lease-expired keep, and a job that Kueue runs: nothing is done to it."""
    cluster = made(clock, **given)
    for _ in range(5):
        look(cluster, history)
        clock.now += 60
    assert not suspended(cluster), what
    assert len(told(cluster, names.EVENT_NOT_SUSPENDED)) == (what == "another's")


def test_a_job_that_nobody_has_launched_has_no_lease(clock, history):
    """So has one that its launcher has let go: the annotation is taken away."""
    cluster = made(clock)
    look(cluster, history)
    renew(cluster, None)
    for _ in range(5):
        clock.now += 60
        look(cluster, history)
    assert not suspended(cluster)
    assert not told(cluster, names.EVENT_LAUNCHER_SILENT)
