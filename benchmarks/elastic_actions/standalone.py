# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One machine, no Kubernetes: a training process is killed; seconds until every rank steps again.

torchrun, DLRover and rover-kf each run the workload with two processes; rover-kf as an embedded
job of one pod.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import TextIO

import environments
import manifest
import marks
import outcome
from outcome import Outcome, World
from waiting import TooLong, wait

from rover_kf.client import RoverClient, settings

WORKLOAD = pathlib.Path(__file__).parent / "workload.py"
PROCESSES = 2
SETTLED_STEPS = 60
LONGEST_SECONDS = 120.0
LAST_CHARACTERS = 1500
"""Of a system's output, where it fails."""
SYSTEMS = ("torchrun", "dlrover", "rover")


def take(system: str) -> Outcome:
    """One repeat.

    Args:
        system: of SYSTEMS.

    Raises:
        TooLong: it did not train, or not again.
        NotInstalled: DLRover cannot be had here.
    """
    with tempfile.TemporaryDirectory(prefix="bench-elastic-") as scratch:
        folder = pathlib.Path(scratch)
        start = _embedded if system == "rover" else _command
        with start(system, folder):
            return _killed(folder / "marks")


def _killed(folder: pathlib.Path) -> Outcome:
    def settled() -> World | None:
        return outcome.trains(marks.read(folder), PROCESSES, SETTLED_STEPS)

    world = wait(settled, seconds=LONGEST_SECONDS, what="the first steps", every=0.02)
    victim = max(world.tracks, key=lambda track: track.process.rank)
    acted = time.time()
    os.kill(victim.process.pid, signal.SIGKILL)

    def again() -> Outcome | None:
        found = marks.read(folder)
        return outcome.outcome(found, before={world.name}, acted=acted, size=PROCESSES, left=set())

    return wait(again, seconds=LONGEST_SECONDS, what="steps after the kill", every=0.02)


@contextlib.contextmanager
def _command(system: str, folder: pathlib.Path) -> Iterator[None]:
    python = environments.python_for(system)
    program = ["-m", "torch.distributed.run"]
    if system == "dlrover":
        program = [str(python.parent / "dlrover-run")]
    words = [str(python), *program, "--standalone", f"--nproc-per-node={PROCESSES}"]
    words += ["--max-restarts=10", *_script(folder, "torch")]
    with (folder / "log").open("w") as log, _process(words, log):
        try:
            yield
        except TooLong as late:
            said = (folder / "log").read_text()[-LAST_CHARACTERS:]
            raise TooLong(f"{late}; its last words: {said}") from late


@contextlib.contextmanager
def _process(words: list[str], log: TextIO) -> Iterator[None]:
    process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            print(f"{words[1]} does not end by SIGTERM", file=sys.stderr)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def _embedded(_: str, folder: pathlib.Path) -> Iterator[None]:
    job = manifest.job("standalone", "default", side="rover", workers=1)
    del job["spec"]["elasticPolicy"]
    job["spec"]["nprocPerNode"] = str(PROCESSES)
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    del pod["topologySpreadConstraints"], pod["volumes"], pod["containers"][0]["volumeMounts"]
    pod["containers"][0]["command"] = ["torchrun", *_script(folder, "rover")]
    del job["metadata"]["annotations"]["rover-kf.io/checkpoint.path"]
    with RoverClient(told=settings.read({}, state=folder / "state")) as rover:
        rover.submit(job)
        yield


def _script(folder: pathlib.Path, keep: str) -> list[str]:
    places = [f"--checkpoints={folder / 'files'}", f"--marks={folder / 'marks'}"]
    return [str(WORKLOAD), "--keep", keep, *places]
