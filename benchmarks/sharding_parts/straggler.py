# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Time of an epoch of synchronous training, one of four ranks three times slower, over the ideal.

Ideal: the same loop with torch's own loader and parts by speeds that are known from the first step,
run in turn with the others, so that all are busy all the time; it pays for Gloo, the optimizer and
a loader as they do. Told beside it are the same times over the arithmetic one, of samples alone.
Peers are each run in their own environment (checkpoint_peers/environments.py).
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "checkpoint_peers"))

import environments

SECONDS = (0.001, 0.001, 0.001, 0.003)
"""That a sample takes each rank."""
BATCH, STEPS = 256, 150
SYSTEMS = ("ideal", "static", "dlrover", "rover")


def measure(rounds: int) -> dict[str, Any]:
    """Medians of rounds in which each system has its turn.

    Returns:
        ``straggler_over_ideal`` and the same of ``peers``; a peer that cannot run says why.
    """
    found: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    told: dict[str, Any] = {}
    for _ in range(rounds):
        for system in SYSTEMS:
            seconds, why_not = epoch(system)
            if seconds:
                found[system].append(seconds)
            else:
                told[system] = why_not
    ran = {name: each for name, each in found.items() if each}
    ideal, samples = statistics.median(ran["ideal"]), sum(1 / seconds for seconds in SECONDS)
    arithmetic = BATCH * STEPS / samples
    told |= {name: round(statistics.median(each) / ideal, 3) for name, each in ran.items()}
    return {
        "straggler_over_ideal": told.pop("rover"),
        "straggler_over_arithmetic": {
            name: round(statistics.median(each) / arithmetic, 3) for name, each in ran.items()
        },
        "straggler_seconds": {name: [round(each, 2) for each in of] for name, of in ran.items()},
        "peers": {"straggler_over_ideal": told},
    }


def epoch(system: str) -> tuple[float, str]:
    """Seconds of one epoch; 0 and the reason if the peer's packages cannot be had here."""
    try:
        python = environments.python_for(system)
    except environments.NotInstalled as error:
        return 0.0, str(error)
    command = [python, HERE / "straggler_ranks.py", system]
    numbers = ["--samples", str(BATCH * STEPS), "--batch", str(BATCH)]
    done = subprocess.run(
        [*command, *numbers, "--seconds", *map(str, SECONDS)],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    seconds = json.loads(done.stdout.splitlines()[-1])["seconds"]
    print(f"{system}: {seconds:.2f} s", file=sys.stderr, flush=True)
    return float(seconds), ""
