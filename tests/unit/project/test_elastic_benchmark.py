# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the elastic benchmark makes of marks: seconds, pauses, steps lost, and its results file."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks.elastic_bench import journal, manifest, outcome, table
from benchmarks.elastic_bench.journal import Process, Step, Track
from benchmarks.elastic_bench.results import Results


def track(world, size, rank, first, *times, pod=""):
    """A process whose first step has the number ``first``."""
    process = Process(pod or f"pod-{rank}", 7, world, size, rank, first - 1)
    return Track(process, tuple(Step(first + at, when) for at, when in enumerate(times)))


BEFORE = [track(1, 3, rank, 1, 10.0, 11.0, 12.0) for rank in range(3)]


def after(tracks, **changes):
    asked = {"before": {1}, "acted": 12.5, "size": 3, "left": {"pod-0", "pod-1"}, **changes}
    return outcome.outcome([*BEFORE, *tracks], **asked)


def test_a_restart_in_place():
    """Until the last rank's first step; the old world did three steps, the new one begins at 3."""
    again = [track(2, 3, rank, 3, 13.0 + rank / 10, 14.0) for rank in range(3)]
    found = after(again)
    assert found.seconds == pytest.approx(0.7)
    assert found.survivors == pytest.approx(0.6)
    assert found.pause == pytest.approx(1.0)
    assert found.steps_lost == 1
    assert after(again[:2]) is None
    assert after([*again[:2], track(2, 3, 2, 3)]) is None


def test_survivors_go_on_before_the_world_is_whole():
    """A smaller world in between ends the survivors' pause, not the action."""
    smaller = [track(2, 2, rank, 4, 14.0, 15.0, 16.0) for rank in range(2)]
    whole = [track(3, 3, rank, 7, 17.5) for rank in range(3)]
    assert after(smaller) is None
    found = after([*smaller, *whole])
    assert (found.seconds, found.survivors, found.pause) == pytest.approx((5.0, 1.5, 2.0))
    assert found.steps_lost == 0


def test_a_planned_change_counts_what_the_old_world_did_meanwhile():
    """It trains on after the action: that is no pause, and no step of it is lost."""
    old = [track(1, 2, rank, 1, 10.0, 11.0, 12.0, 13.0, 14.0) for rank in range(2)]
    new = [track(2, 3, rank, 6, 14.4) for rank in range(3)]
    asked = {"before": {1}, "acted": 11.5, "size": 3, "left": set()}
    found = outcome.outcome([*old, *new], **asked)
    assert (found.seconds, found.pause) == pytest.approx((2.9, 1.0))
    assert found.steps_lost == 0


def test_a_start_has_no_steps_to_lose():
    """Nothing was there before the job."""
    new = [track(1, 2, rank, 1, 22.0 + rank) for rank in range(2)]
    found = outcome.outcome(new, before=(), acted=20.0, size=2, left=set())
    assert (found.seconds, found.steps_lost) == (3.0, 0)


def test_a_world_trains_once_every_rank_has_stepped():
    """The newest one counts, with all its ranks."""
    assert outcome.trains(BEFORE, 3, 3).name == 1
    assert outcome.trains(BEFORE, 3, 4) is None
    assert outcome.trains(BEFORE[:2], 3, 1) is None
    assert outcome.trains([*BEFORE, track(2, 2, 0, 4, 13.0)], 3, 1) is None


def test_goodput_counts_new_steps_only():
    """Ten seconds with eight new steps of a second each, two of them done twice."""
    times = [float(at) for at in range(1, 7)]
    tracks = [track(1, 1, 0, 1, *times), track(2, 1, 0, 5, 7.0, 8.0, 9.0, 10.0)]
    assert outcome.goodput(tracks, begun=0.0, ended=10.0, step_seconds=1.0) == pytest.approx(0.8)
    assert outcome.step_seconds(tracks[0]) == 1.0


def test_marks_are_read_as_they_were_written(tmp_path):
    """Every process its file; a line that is being written is not read yet."""
    process = Process("pod-0", 7, 123, 2, 0, 40)
    written = journal.Marks(tmp_path / "marks", process)
    written.step(41)
    (found,) = journal.read(tmp_path / "marks")
    assert found.process == process
    assert [step.number for step in found.steps] == [41]
    head = json.dumps(dataclasses.asdict(process))
    assert journal.parse(head[:20]) is None
    assert journal.parse(f"{head}\n41 1.5\n42 1.") == Track(process, (Step(41, 1.5),))


def test_results_go_on_where_they_were(tmp_path):
    """Kept after each sample; figures are medians, repeats those of the side that has fewest."""
    path = tmp_path / "bench" / "elastic.json"
    results = Results(path, {"cores": 2})
    for seconds in (3.0, 1.0, 2.0):
        results.add("kill_process", "rover", {"seconds": seconds, "steps_lost": 0})
    results = Results(path, {"cores": 2})
    results.add("kill_process", "stock", {"seconds": 70.0, "steps_lost": 50})
    results.add("standalone", "torchrun", {"value": 4.0})
    report = json.loads(path.read_text())
    assert report["actions"]["kill_process"] == {
        "rover_seconds": 2.0,
        "rover_steps_lost": 0,
        "stock_seconds": 70.0,
        "stock_steps_lost": 50,
        "repeats": 1,
    }
    assert report["standalone"] == {"torchrun": 4.0}
    assert report["goodput"] == {}
    shown = table.markdown(report)
    assert "| kill_process | 70 / 2 | - / - | - / - | 50 / 0 | 1 |" in shown
    for side in ("rover", "stock"):
        results.clear("kill_process", side)
        assert results.count("kill_process", side) == 0
    assert results.report()["actions"] == {}


def test_both_sides_run_the_same_job():
    """Label, annotations and how state is kept are all that differs."""
    stock, rover = (manifest.job("a", "n", side=side, workers=3) for side in manifest.SIDES)
    commands = []
    for job in (stock, rover):
        pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        command = pod["containers"][0].pop("command")
        commands.append(["" if word in ("torch", "rover") else word for word in command])
    assert commands[0] == commands[1]
    assert stock["spec"] == rover["spec"]
    assert set(rover["metadata"]) - set(stock["metadata"]) == {"labels", "annotations"}
    assert (
        "elasticPolicy" not in manifest.job("a", "n", side="stock", workers=1, master=True)["spec"]
    )
