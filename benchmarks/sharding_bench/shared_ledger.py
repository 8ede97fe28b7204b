# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that do not wait for each other and pull what they train on, as with parameter servers.

An epoch with one of four three times slower, over the ideal; and a job that is killed in the middle
of one and goes on with three. DLRover's ShardingClient, with its master, beside our ShardedDataset,
with the embedded job's coordinator, both in shards of ten batches; static: equal parts.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

HERE = pathlib.Path(__file__).parent

from benchmarks.checkpoint_systems import environments
from rover_kf.client import RoverClient, settings

SAMPLES, BATCH = 24_000, 16
SECONDS = (0.001, 0.001, 0.001, 0.003)
"""That a sample takes each process, asleep."""
KEPT_AT, KILLED_AT = 9_000, 10_000
"""Samples after which the place is kept, and after which everything is killed."""
LONGEST_SECONDS = 180.0
SYSTEMS = ("static", "dlrover", "rover")


def measure(rounds: int) -> dict[str, Any]:
    """Medians of rounds in which each system has its turn; a peer that cannot run says why."""
    told: dict[str, Any] = {system: [] for system in SYSTEMS}
    for _ in range(rounds):
        for system in SYSTEMS:
            if isinstance(told[system], list):
                told[system] = _tried(told[system], system)
    mine = _medians(told.pop("rover"))
    return {"pulled": mine, "peers": {"pulled": {name: _medians(of) for name, of in told.items()}}}


def _tried(before: list[dict[str, float]], system: str) -> list[dict[str, float]] | str:
    try:
        python = environments.python_for(system)
    except environments.NotInstalled as error:
        return str(error)
    found = {"epoch_over_ideal": _epoch(system, python)}
    if system != "static":
        found |= _resumed(system, python)
    print(f"{system}: {found}", file=sys.stderr, flush=True)
    return [*before, found]


def _medians(rounds: list[dict[str, float]] | str) -> Any:
    if isinstance(rounds, str):
        return rounds
    return {
        name: round(statistics.median(each[name] for each in rounds), 3) for name in rounds[0]
    } | {"rounds": len(rounds)}


def _epoch(system: str, python: pathlib.Path) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-pulled-") as name:
        life = Life(system, python, pathlib.Path(name), len(SECONDS))
        with life.running():
            life.wait(life.ended)
        taken = life.taken()
        assert len({number for _, number in taken}) == SAMPLES, f"{system} lost samples"
        return (taken[-1][0] - life.begun()) / (SAMPLES / sum(1 / each for each in SECONDS))


def _resumed(system: str, python: pathlib.Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-pulled-") as name:
        first = Life(system, python, pathlib.Path(name) / "first", 4)
        with first.running():
            first.wait(lambda: len(first.taken()) >= KEPT_AT)
            (first.folder / "keep").touch()
            first.wait((first.folder / "place").exists)
            first.wait(lambda: len(first.taken()) >= KILLED_AT)
        place = json.loads((first.folder / "place").read_text())
        second = Life(system, python, pathlib.Path(name) / "second", 3, first.folder / "place")
        with second.running():
            second.wait(second.ended)
        # What the model has: all that had been trained on when the place was known.
        model = [number for at, number in first.taken() if at <= place["at"]]
        counts = collections.Counter([*model, *(number for _, number in second.taken())])
        return {
            "lost": SAMPLES - len(counts),
            "repeated": sum(count - 1 for count in counts.values()),
            "done_again": sum(at > place["at"] for at, _ in first.taken()),
        }


@dataclasses.dataclass(frozen=True)
class Life:
    """Processes of a job, from their start until they have ended or are killed.

    Args:
        system: of SYSTEMS.
        python: its interpreter.
        folder: where they write.
        world: processes.
        place: a file with the place that they go on from.
    """

    system: str
    python: pathlib.Path
    folder: pathlib.Path
    world: int
    place: pathlib.Path | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Until the block ends, whatever is left then is killed."""
        self.folder.mkdir(exist_ok=True)
        start = _embedded if self.system == "rover" else _alone
        with start(self), contextlib.ExitStack() as started:
            started.callback((self.folder / "over").touch)
            self.wait(lambda: len(list(self.folder.glob("ready-*"))) == self.world)
            (self.folder / "begun").write_text(repr(time.time()))
            (self.folder / "go").touch()
            yield

    def command(self) -> list[str]:
        """Of one process; its rank is in the environment."""
        numbers = ["--samples", SAMPLES, "--batch", BATCH, "--world", self.world]
        place = ["--place", self.place] if self.place else []
        words = [
            HERE / "shared_ledger_worker.py",
            self.system,
            "--folder",
            self.folder,
            *numbers,
            *place,
        ]
        return [*map(str, words), "--seconds", *map(str, SECONDS)]

    def taken(self) -> list[tuple[float, int]]:
        """Time and number of each sample that was trained on, in the order of time."""
        lines = [line for path in self.folder.glob("journal-*") for line in _whole(path)]
        return sorted((at, number) for at, numbers in map(json.loads, lines) for number in numbers)

    def begun(self) -> float:
        """When they were let go."""
        return float((self.folder / "begun").read_text())

    def ended(self) -> bool:
        """Whether all have trained on what there was for them."""
        return len(list(self.folder.glob("ended-*"))) == self.world

    def wait(self, condition: Callable[[], object]) -> None:
        """Look until it is so.

        Raises:
            TimeoutError: it was not in time.
        """
        until = time.monotonic() + LONGEST_SECONDS
        while not condition():
            if time.monotonic() > until:
                said = [path.read_text()[-1500:] for path in self.folder.glob("*log")]
                raise TimeoutError(f"{self.system} does not go on; {said}")
            time.sleep(0.1)


def _whole(path: pathlib.Path) -> list[str]:
    """Lines that are not being written."""
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@contextlib.contextmanager
def _alone(life: Life) -> Iterator[None]:
    """Processes of our own making, with DLRover's master if it is theirs."""
    variables = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    with contextlib.ExitStack() as running:
        if life.system == "dlrover":
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            words = ["--port", f"{port}", "--node_num", f"{life.world}", "--job_name", "bench"]
            words = ["-m", "dlrover.python.master.main", *words, "--platform", "local"]
            running.enter_context(_process(life, "master", [str(life.python), *words], variables))
            variables["DLROVER_MASTER_ADDR"] = f"127.0.0.1:{port}"
        for rank in range(life.world):
            own = {**variables, "RANK": f"{rank}", "NODE_ID": f"{rank}", "NODE_TYPE": "worker"}
            command = [str(life.python), *life.command()]
            running.enter_context(_process(life, f"worker{rank}", command, own))
        yield


@contextlib.contextmanager
def _process(
    life: Life, name: str, command: list[str], variables: dict[str, str]
) -> Iterator[None]:
    with (life.folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            command, env=variables, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def _embedded(life: Life) -> Iterator[None]:
    """A job of one pod; its processes are killed first, so that none has a last word."""
    container = {
        "name": "pytorch",
        "image": "unused",
        "command": ["torchrun", f"--nproc-per-node={life.world}", *life.command()],
    }
    job: dict[str, Any] = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": "pulled",
            "labels": {"rover-kf.io/inject": "true"},
            "annotations": {"rover-kf.io/scaling.mode": "off"},
        },
        "spec": {
            "nprocPerNode": str(life.world),
            "pytorchReplicaSpecs": {
                "Master": {
                    "replicas": 1,
                    "restartPolicy": "OnFailure",
                    "template": {"spec": {"containers": [container]}},
                }
            },
        },
    }
    with RoverClient(config=settings.read({}, state=life.folder / "state")) as rover:
        rover.submit(job)
        try:
            yield
        finally:
            (life.folder / "go").unlink()  # processes that are started again wait for it
            for path in life.folder.glob("ready-*"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(path.read_text()), signal.SIGKILL)
            rover.delete(job["metadata"]["name"])
