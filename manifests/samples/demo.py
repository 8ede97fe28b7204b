# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The whole path on one machine: recommend, patch, run, kill, recover, scale, record, report.

    python manifests/samples/demo.py --out build/demo.json

Runs digits.yaml with two replicas, kills one training process with SIGKILL between two seals,
waits until every rank trains again, lets the watcher find by itself that a third replica pays,
and writes what it measured. Ends with 1 if a promise is broken; how long it took is told, not
judged: that depends on what else the machine does. Everything happens in child processes
of this one, on loopback addresses; a few tens of seconds on two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import sys
import time

from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.api.records import RunRecord
from rover_kf.api.status import CoordinatorStatus
from rover_kf.cli.recommend import format_amount
from rover_kf.client import RoverClient, settings
from rover_kf.cluster.local import LocalCluster
from rover_kf.errors import ClusterUnavailable

SAMPLE = pathlib.Path(__file__).with_name("digits.yaml")
ACCURACY, RECOVERY_SECONDS, SECONDS = 0.95, 5.0, 90.0
LOOK_SECONDS, START_SECONDS, PATIENCE_SECONDS = 0.05, 180.0, 60.0
RESTORED = re.compile(r"rank (\d+) of (\d+) resumes at step (\d+) from (\w+) in round (\d+)")


@dataclasses.dataclass(frozen=True)
class Recovery:
    """What one kill cost."""

    killed_at_step: int
    resumed_step: int
    restored_from: str
    recovery_seconds: float


def main() -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/demo.json"))
    out = parser.parse_args().out.absolute()
    state = out.parent / "demo"
    if state.exists():
        with LocalCluster(state):  # sweeps what a killed demo has left in memory
            pass
        shutil.rmtree(state)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begun = time.monotonic()
    told = dataclasses.replace(
        settings.read(state=state), history=f"sqlite:///{state / 'history.db'}"
    )
    with RoverClient(config=told) as rover:
        result = run(rover, out.with_suffix(".html"))
    result["seconds"] = round(time.monotonic() - begun, 1)
    missed = bars_missed(result)
    seconds = result.pop("seconds")
    out.write_text(json.dumps(result, indent=2) + "\n")
    say(f"{seconds} s ({SECONDS:.0f} s are the bar on two idle cores); {out}, {result['report']}")
    for bar in missed:
        say(f"MISSED: {bar}")
    return 1 if missed else 0


def run(rover: RoverClient, report: pathlib.Path) -> dict[str, object]:
    """Take the sample through its life; what was measured."""
    for size in rover.recommend(SAMPLE).quantities:
        say(f"recommended {size.name}: {format_amount(size.target, size.unit)} ({size.basis})")
    job = rover.submit(SAMPLE)
    key = job.key
    interval = int(job.annotations[f"{names.PREFIX}checkpoint.every"])
    recovery = kill_and_recover(rover, key, interval)
    say(
        f"killed at step {recovery.killed_at_step}, resumed at {recovery.resumed_step} from "
        f"{recovery.restored_from}, training again after {recovery.recovery_seconds:.2f} s"
    )
    for progress in rover.watch(key):
        for event in progress.events:
            if event.reason.startswith("Scale") or event.warning:
                say(f"{event.reason}: {event.message}")
    rover.wait(key, timeout=1.0)
    record = rover.record(key)
    assert record is not None, "the run was not recorded"  # noqa: S101 - a demo may say so
    return {
        "accuracy": result_of(rover, key)["accuracy"],
        "checkpoint_interval": interval,
        "killed_at_step": recovery.killed_at_step,
        "resumed_step": recovery.resumed_step,
        "restored_from": recovery.restored_from,
        "lost_steps": recovery.killed_at_step - recovery.resumed_step,
        "recovery_seconds": round(recovery.recovery_seconds, 3),
        **scaling_of(record),
        "history_rows": len(rover.history.list()),
        "report": str(rover.report(key, report)),
    }


def kill_and_recover(rover: RoverClient, key: JobKey, interval: int) -> Recovery:
    """Kill the last worker's training process in the middle between two seals."""
    patience = time.monotonic() + START_SECONDS
    while True:
        if time.monotonic() > patience:
            raise SystemExit(f"nothing trains after {START_SECONDS} s: {rover.progress(key)}")
        before = status_of(rover, key)
        if before is not None and before.phase == "training" and (before.sealed_step or 0) > 0:
            since = before.step - (before.sealed_step or 0)
            if interval / 4 < since < interval:
                break
        time.sleep(LOOK_SECONDS)
    pod, victim = training_process(rover, key)
    killed_at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    say(f"SIGKILL to process {victim} of {pod} at step {before.step}")
    told = max((event.sequence for event in before.events), default=0)
    while time.monotonic() < killed_at + PATIENCE_SECONDS:
        after = status_of(rover, key, after=told)
        if after is not None and after.round > before.round and after.phase == "training":
            found = restored(after)
            if found is not None and after.restart_seconds > 0:
                break
        time.sleep(LOOK_SECONDS)
    else:
        raise SystemExit(f"the job did not recover: {rover.progress(key)}")
    seconds = time.monotonic() - killed_at
    # A process dies before its last report: the step it was at is at least what it resumes from.
    return Recovery(max(before.step, found[0]), *found, seconds)


def restored(status: CoordinatorStatus) -> tuple[int, str] | None:
    """Step and source that all ranks of the round resumed from; None until all have."""
    found = [
        match
        for event in status.events
        if event.reason == names.EVENT_RESTORED and (match := RESTORED.match(event.message))
    ]
    mine = [match for match in found if int(match[5]) == status.round]
    if len({match[1] for match in mine}) < status.world_size:
        return None
    steps = {(int(match[3]), match[4]) for match in mine}
    step = min(step for step, _ in steps)
    sources = {source for _, source in steps}
    return step, "memory" if sources == {"memory"} else "+".join(sorted(sources))


def training_process(rover: RoverClient, key: JobKey) -> tuple[str, int]:
    """The last pod that trains, and in it the process that maps a slot of the arena."""
    assert isinstance(rover.cluster, LocalCluster)  # noqa: S101 - the demo is embedded
    for pod in reversed(rover.cluster.list_pods(key)):
        for pid in rover.cluster.processes(key, pod.name, names.PYTORCH_CONTAINER):
            if "/arena/" in pathlib.Path(f"/proc/{pid}/maps").read_text():
                return pod.name, pid
    raise SystemExit("no process trains")


def scaling_of(record: RunRecord) -> dict[str, object]:
    """What the watcher did, what it expected and what it got."""
    scaled = next((item for item in record.decisions if item.applied), None)
    if scaled is None:
        why = record.decisions[-1].reason if record.decisions else "it decided nothing"
        raise SystemExit(f"the watcher did not scale: {why}")

    def rate(nodes: int) -> float:
        rates = [item.samples_per_second for item in record.windows if item.nodes == nodes]
        return statistics.median(rates) if rates else 0.0

    before, after = rate(scaled.current), rate(scaled.target)
    return {
        "scaled_from": scaled.current,
        "scaled_to": scaled.target,
        "predicted_gain": round(scaled.predicted_gain, 3),
        "measured_gain": round(after / before, 3) if before else 0.0,
    }


def result_of(rover: RoverClient, key: JobKey) -> dict[str, float]:
    """The JSON line that rank 0 printed last."""
    lines = rover.logs(key).splitlines()
    found: dict[str, float] = json.loads(
        next(line for line in reversed(lines) if line.startswith("{"))
    )
    return found


def status_of(rover: RoverClient, key: JobKey, *, after: int = 0) -> CoordinatorStatus | None:
    """The coordinator's word, with events that follow number ``after``; None while it is silent."""
    if rover.get(key).finished:
        raise SystemExit(f"the job ended early: {rover.verdict(key)}\n{rover.logs(key)}")
    try:
        return rover.status(key, after=after)
    except ClusterUnavailable:
        return None


def bars_missed(result: dict[str, object]) -> list[str]:
    """Which of the promises were not kept."""
    bars = {
        f"accuracy >= {ACCURACY}": result["accuracy"] >= ACCURACY,  # type: ignore[operator] # JSON
        "lost_steps <= checkpoint_interval": result["lost_steps"] <= result["checkpoint_interval"],  # type: ignore[operator] # JSON
        "restored_from memory": result["restored_from"] == "memory",
        f"recovery_seconds <= {RECOVERY_SECONDS}": result["recovery_seconds"] <= RECOVERY_SECONDS,  # type: ignore[operator] # JSON
        "scaled up": result["scaled_to"] > result["scaled_from"],  # type: ignore[operator] # JSON
        "history_rows >= 1": result["history_rows"] >= 1,  # type: ignore[operator] # JSON
    }
    return [f"{bar}: {result}" for bar, kept in bars.items() if not kept]


def say(text: str) -> None:
    """Print with the clock."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
