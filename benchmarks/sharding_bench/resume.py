# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job that goes on in the middle of an epoch with three ranks in the place of four.

What becomes of the samples, how soon the first batch is there, what the checkpoint has of it; peers
beside ours, each in its own environment (checkpoint_systems/environments.py).
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).parent

from benchmarks.checkpoint_systems import environments

SAMPLES, BATCH, BEFORE = 24_000, 240, 37
SYSTEMS = ("rover", "dlrover", "mosaicml")


def measure(rounds: int) -> dict[str, Any]:
    """Medians of rounds; a peer that cannot run says why."""
    told = {system: _system(system, rounds) for system in SYSTEMS}
    return {"resume": told.pop("rover"), "peers": {"resume": told}}


def _system(system: str, rounds: int) -> Any:
    try:
        python = environments.python_for(system)
        found = [_round(system, python) for _ in range(rounds)]
    except environments.NotInstalled as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        return f"does not run: {error.stderr.strip().splitlines()[-1]}"
    seconds = statistics.median(each["first_batch_ms"] for each in found)
    return {**found[-1], "first_batch_ms": round(seconds, 1), "rounds": rounds}


def _round(system: str, python: pathlib.Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command = [python, HERE / "resume_readers.py", system, "--folder", folder]
        whole = _life(command, folder, 4)
        before = _life(command, folder, 4, "--steps", BEFORE)
        after = _life(command, folder, 3, "--after", before)
        steps = _steps(folder, before, 4) + _steps(folder, after, 3)
        counts = collections.Counter(number for step in steps for number in step)
        undisturbed = _steps(folder, whole, 4)
        same = sum(sorted(a) == sorted(b) for a, b in zip(steps, undisturbed, strict=False))
        ranks = [json.loads((folder / f"{after}-{r}.json").read_text()) for r in range(3)]
        state = json.loads((folder / f"{before}-0.json").read_text())["state"]
        return {
            "lost": SAMPLES - len(counts),
            "repeated": sum(count - 1 for count in counts.values()),
            "steps_as_undisturbed": same,
            "steps": len(undisturbed),
            "first_batch_ms": max(rank["first_batch"] for rank in ranks) * 1e3,
            "state_bytes": len(json.dumps(state)),
        }


def _life(command: list[Any], folder: pathlib.Path, world: int, *more: object) -> str:
    life = f"life{len(list(folder.glob('life*-0.json')))}"
    words = ["--world", world, "--samples", SAMPLES, "--batch", BATCH, "--port", _port(), *more]
    subprocess.run(
        [*map(str, command), *map(str, words), "--life", life],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return life


def _steps(folder: pathlib.Path, life: str, world: int) -> list[list[int]]:
    """Samples of each step, over all ranks."""
    ranks = [json.loads((folder / f"{life}-{r}.json").read_text())["steps"] for r in range(world)]
    return [[number for part in step for number in part] for step in zip(*ranks, strict=True)]


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
