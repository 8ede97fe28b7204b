# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One job trains for an hour while something breaks every 20 to 60 seconds, and ends well.

Not among the faults: the embedded cluster itself. Its design is that a job ends with the process
that runs it (rover_kf/cluster/local/container.py), so nothing is left to recover.
"""

from __future__ import annotations

import json
import os
import pathlib
import time

import pytest
from soaking import growth, recovery, schedule
from soaking.job import CHECKPOINT_EVERY, Job, steps_for
from soaking.record import Record
from soaking.recovery import Struck
from soaking.strike import SETTLE_SECONDS, strike, wait_pause
from soaking.usage import Sampler, memory_folders

from rover_kf.cluster.local import LocalCluster
from rover_kf.cluster.local.settings import Timing
from tests.support.jobs.embedded_job import client_in

ACCURACY, KEEP = 0.95, 3
LONGEST_RESTART = 1.0
"""Seconds; the back-off of a container that has run well is not forgotten here as a kubelet does
after ten minutes, and would grow with each fault."""
REST_SECONDS = 45
"""Of training that are left to the end without a fault, so that the last one is seen through."""


@pytest.mark.torch
def test_training_outlives_its_faults(minutes, seed, tmp_path, pytestconfig):
    """No fault costs more than the design says, none leaves anything, and the model is as good."""
    print(f"\nsoak of {minutes:g} minutes, seed {seed}, {tmp_path}", flush=True)
    state = tmp_path / "state"
    cluster = LocalCluster(state, Timing(longest_restart=LONGEST_RESTART))
    with client_in(tmp_path, cluster) as rover:
        job = Job(rover, steps_for(minutes))
        with Sampler(cluster, job.key) as sampler:
            struck = _strike_until_rest(job, seed)
            rover.wait(job.key, "Succeeded", timeout=60 * minutes + SETTLE_SECONDS)
        job.trace.read()
        took = max(line.at for line in job.trace.current.newest.values()) - job.begun
        events, folders = rover.events(job.key), memory_folders(job.folder)
        result = job.result()
    found = recovery.recoveries(struck, job.trace.rounds)
    goodput = job.trace.productive_seconds / took
    record = Record(
        minutes, took / 60, seed, job.steps, goodput, found, tuple(sampler.samples), result
    )
    out = pytestconfig.rootpath / "build" / "soak.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(record.to_json(), indent=2) + "\n")
    print(f"{record.table()}\n{out}", flush=True)
    pods_made = sum(event.reason == recovery.POD_CREATED for event in events)

    broken = [
        *recovery.lost_too_much(found, CHECKPOINT_EVERY),
        *recovery.ranks_apart(job.trace.rounds.values()),
        *recovery.wrong_sources(found),
        *recovery.unexplained(found, events),
        *growth.grown(sampler.samples),
        *growth.piled_up(sampler.files, keep=KEEP, pods_made=pods_made),
        *(f"{folder} is left" for folder in folders if folder.exists()),
        *(f"left: {told}" for told in _processes_of([str(state), *map(str, folders)])),
    ]
    assert broken == []  # all of it at once: the next look costs an hour
    assert result["steps"] == job.trace.current.step == job.steps
    assert result["accuracy"] >= ACCURACY


def _strike_until_rest(job: Job, seed: int) -> list[Struck]:
    """Make faults until only the rest is left; the job trains with both replicas before."""
    struck: list[Struck] = []
    job.until(lambda: job.recovered(schedule.FEWEST, 0), "first steps")
    job.until(lambda: job.steady(schedule.FEWEST), "all well at first")
    rest = steps_for(REST_SECONDS / 60)
    for fault in schedule.faults(seed):
        if job.steps - job.step < steps_for(fault.pause / 60) + rest:
            return struck
        wait_pause(job, fault.pause)
        struck.append(strike(job, fault))
        now = recovery.recoveries(struck, job.trace.rounds)[-1]
        print(
            f"{time.strftime('%H:%M:%S')} {struck[-1]}: every rank steps again after "
            f"{struck[-1].seconds:.2f} s, {now.steps_lost} steps lost, rounds {now.rounds}, "
            f"from {sorted(now.sources)}",
            flush=True,
        )
    raise AssertionError


def _processes_of(places: list[str]) -> list[str]:
    """Other processes whose command line or environment names one of these places."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                texts = [(entry / name).read_bytes() for name in ("cmdline", "environ")]
            except OSError:  # it has just ended, or is another user's
                continue
            if any(place.encode() in text for place in places for text in texts):
                found.append(f"{entry.name}: {texts[0].decode(errors='replace')}")
    return found
