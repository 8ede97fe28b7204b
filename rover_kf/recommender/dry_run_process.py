# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A few real steps of the user's script at two batch sizes, each in a process of its own.

The script runs as it is, alone (a world of one), with the manifest's arguments and environment.
What it holds and how long its steps take is measured; where it does not fit on this machine, or if
asked, shapes are computed in place of numbers, which gives the accelerator's memory alone.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.dry_run import messages
from rover_kf.dry_run.messages import DryRunRequest, DryRunResult, TimedSteps
from rover_kf.recommender.profile import MemoryFootprint, Profile, Trial, run_profile

FACTORS = (1.0, 0.5)
"""Of the script's own batch; activations and time are affine in it."""
SHARE_OF_MEMORY = 0.8
"""Of what this machine has free, that a trial may take."""
_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
_MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


@dataclasses.dataclass(frozen=True, slots=True)
class DryRunSpec:
    """What to run and how long."""

    command: tuple[str, ...]
    """Of the trainer's container: python or torchrun, the script, its arguments."""
    folder: pathlib.Path
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The container's variables, over this process's own."""
    steps: int = 6
    """Timed for each batch."""
    seconds: float = 180.0
    """Most for each batch."""
    batch_option: str = ""
    """Argument whose value is the batch, such as ``--batch-size``; without it DataLoaders are
    resized."""
    fake: bool = False
    factors: tuple[float, ...] = FACTORS
    """Batches, of the script's own."""


def run_dry_run(spec: DryRunSpec) -> Profile:
    """Run the script for a few steps at each batch; InputError if it made none at any."""
    done: list[tuple[Profile, DryRunResult, bool]] = []
    refusals: list[str] = []
    for factor in spec.factors:
        fake = spec.fake
        try:
            done.append((*_run_trial(spec, factor, fake=fake), fake))
        except errors.InputError as refusal:
            refusals.append(str(refusal))
            if spec.fake:
                continue
            try:
                done.append((*_run_trial(spec, factor, fake=True), True))
            except errors.InputError as another:
                refusals.append(str(another))
    if not done:
        raise errors.InputError(f"the dry run made no step: {refusals[0]}")
    return _profile(done, tuple(refusals))


def _run_trial(spec: DryRunSpec, factor: float, *, fake: bool) -> tuple[Profile, DryRunResult]:
    with tempfile.TemporaryDirectory(prefix="rover-dry-run-") as home:
        told, result = pathlib.Path(home) / "orders.json", pathlib.Path(home) / "finding.json"
        command, resized = _resize_command(spec, factor)
        order = DryRunRequest(
            command=command,
            result=str(result),
            steps=1 if fake else spec.steps,
            batch_factor=1.0 if resized else factor,
            fake=fake,
        )
        messages.write(str(told), order)
        line = [sys.executable, "-m", "rover_kf.dry_run", str(told)]
        most = int(_free_memory() * SHARE_OF_MEMORY)
        spent = run_profile(line, _environment(spec), spec.folder, spec.seconds, max_memory=most)
        if not result.exists():
            message = f"the script made too few steps in {spec.seconds:g} s"
            raise errors.InputError(f"{message}; give it more seconds or fewer steps")
        found = messages.read_result(str(result))
    if not found.step_seconds and not (fake and found.steps):
        raise errors.InputError(found.error or "the script ended before its steps were timed")
    return spent, found


def _resize_command(spec: DryRunSpec, factor: float) -> tuple[tuple[str, ...], bool]:
    """The command with its batch changed, and whether the option for it is there."""
    option, words = spec.batch_option, list(spec.command)
    for place, word in enumerate(words):
        if option and word == option and place + 1 < len(words):
            words[place + 1] = _scale_option(option, words[place + 1], factor)
            return tuple(words), True
        if option and word.startswith(f"{option}="):
            words[place] = f"{option}={_scale_option(option, word.partition('=')[2], factor)}"
            return tuple(words), True
    return tuple(words), False


def _scale_option(option: str, value: str, factor: float) -> str:
    if not value.isdecimal():
        raise errors.InputError(f"{option} is {value!r}, not a number of samples")
    return str(max(1, round(int(value) * factor)))


def _environment(spec: DryRunSpec) -> dict[str, str]:
    # A job's own variables (ROVER_…) would let the script look for a sidecar.
    own = {key: value for key, value in os.environ.items() if not key.startswith("ROVER_")}
    return {**own, **spec.environment, **_ALONE, **_MASTER}


def _free_memory() -> int:
    for line in pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _profile(done: list[tuple[Profile, DryRunResult, bool]], refusals: tuple[str, ...]) -> Profile:
    names, trials = [field.name for field in dataclasses.fields(TimedSteps)], dict[int, Trial]()
    for spent, found, fake in reversed(done):
        timed = {name: getattr(found, name) for name in names}
        held = MemoryFootprint() if fake else spent.footprint
        trials[found.batch] = Trial(**timed, footprint=held, faked=fake)
    # The first is of the script's own batch, unless that one failed.
    spent, found, fake = done[0]
    return dataclasses.replace(
        spent,
        peak_memory=0 if fake else spent.peak_memory,
        step_seconds=None if fake else found.step_seconds,
        snapshot_bytes=found.state.snapshot_bytes,
        trials=tuple(trials[batch] for batch in sorted(trials)),
        state=found.state,
        loader_workers=found.loader_workers,
        failures=refusals,
    )
