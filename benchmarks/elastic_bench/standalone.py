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
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from benchmarks.checkpoint_systems import environments
from benchmarks.elastic_bench import journal, manifest, outcome
from benchmarks.elastic_bench.outcome import Outcome, World
from benchmarks.elastic_bench.waiting import TooLong, wait
from rover_kf.client import RoverClient, settings

WORKLOAD = pathlib.Path(__file__).parent / "workload.py"
PROCESSES = 2
SETTLED_STEPS = 60
LONGEST_SECONDS = 120.0
ENDING_SECONDS = 20.0
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
    starts = {"torchrun": _torchrun, "dlrover": _dlrover, "rover": _embedded}
    with tempfile.TemporaryDirectory(prefix="bench-elastic-") as scratch:
        folder = pathlib.Path(scratch)
        with starts[system](folder):
            return _killed(folder / "marks")


def _killed(folder: pathlib.Path) -> Outcome:
    def settled() -> World | None:
        return outcome.trains(journal.read(folder), PROCESSES, SETTLED_STEPS)

    world = wait(settled, seconds=LONGEST_SECONDS, what="the first steps", every=0.02)
    victim = max(world.tracks, key=lambda track: track.process.rank)
    acted = time.time()
    os.kill(victim.process.pid, signal.SIGKILL)

    def again() -> Outcome | None:
        found = journal.read(folder)
        return outcome.outcome(found, before={world.name}, acted=acted, size=PROCESSES, left=set())

    return wait(again, seconds=LONGEST_SECONDS, what="steps after the kill", every=0.02)


@contextlib.contextmanager
def _torchrun(folder: pathlib.Path) -> Iterator[None]:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with _running([*words, *_script(folder, "torch")], folder / "log"):
        yield


@contextlib.contextmanager
def _dlrover(folder: pathlib.Path) -> Iterator[None]:
    python = environments.python_for("dlrover")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # What its --standalone starts itself; with the torch of today that call of its own fails.
    options = ["--port", f"{port}", "--node_num", "1", "--job_name", "bench", "--platform", "local"]
    master = [str(python), "-u", "-m", "dlrover.python.master.main", *options]
    words = [str(python), str(python.parent / "dlrover-run"), "--nnodes=1"]
    place = {"DLROVER_MASTER_ADDR": f"127.0.0.1:{port}", "NODE_RANK": "0"}
    agent = [*words, *_script(folder, "torch")]
    with _running(master, folder / "master.log"), _running(agent, folder / "log", place):
        yield


@contextlib.contextmanager
def _running(
    words: list[str], log: pathlib.Path, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """A program while the block runs; a block that waited too long is told its last words."""
    with log.open("w") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=file, start_new_session=True, env={**os.environ, **variables}
        )
    try:
        yield
    except TooLong as late:
        said = log.read_text()[-LAST_CHARACTERS:]
        raise TooLong(f"{late}; the last words in {log.name}: {said}") from late
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """It and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_SECONDS)


@contextlib.contextmanager
def _embedded(folder: pathlib.Path) -> Iterator[None]:
    job = manifest.job("standalone", "default", side="rover", workers=1)
    del job["spec"]["elasticPolicy"]
    job["spec"]["nprocPerNode"] = str(PROCESSES)
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    del pod["topologySpreadConstraints"], pod["volumes"], pod["containers"][0]["volumeMounts"]
    pod["containers"][0]["command"] = ["torchrun", *_script(folder, "rover")]
    del job["metadata"]["annotations"]["rover-kf.io/checkpoint.path"]
    with RoverClient(config=settings.read({}, state=folder / "state")) as rover:
        rover.submit(job)
        yield


def _script(folder: pathlib.Path, keep: str) -> list[str]:
    options = [f"--nproc-per-node={PROCESSES}", "--max-restarts=10"]
    places = [f"--checkpoints={folder / 'files'}", f"--marks={folder / 'marks'}"]
    return [*options, str(WORKLOAD), "--keep", keep, *places]
