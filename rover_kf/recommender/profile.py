# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A short real run of the user's command: what it takes of memory and CPU on this machine.

Nothing of the command's output is interpreted; ``dry_run`` also looks into its steps. Memory is
counted as a container is charged for it: what processes share is counted once. Linux only, like
the pods that the numbers are for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from rover_kf import errors
from rover_kf.dry_run.messages import ModelState, TimedSteps
from rover_kf.system import procfs


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryFootprint:
    """Bytes of memory."""

    anonymous: int = 0
    """Of no file: heaps, stacks, shared memory; each page once."""
    files: int = 0
    """Of mapped files, by the process that has most of them: the others map the same libraries."""

    @property
    def total(self) -> int:
        """Both."""
        return self.anonymous + self.files


def measure_footprint(pids: tuple[int, ...]) -> MemoryFootprint:
    """What the processes hold together now."""
    each = [_footprint(pid) for pid in pids]
    own = sum(one.anonymous for one in each)
    return MemoryFootprint(own, max((one.files for one in each), default=0))


def unsampled_peaks(seen: dict[int, int], pids: tuple[int, ...]) -> dict[int, int]:
    """What each process held at its worst beyond what looks have seen of it, in bytes.

    ``seen`` is the most that any look saw resident, by process; it is brought up to date.
    """
    found = {}
    for pid in pids:
        counts = procfs.status_sizes(pid)
        if "VmHWM" in counts:
            seen[pid] = max(seen.get(pid, 0), counts.get("VmRSS", 0))
            found[pid] = max(0, counts["VmHWM"] - seen[pid])
    return found


def _footprint(pid: int) -> MemoryFootprint:
    counts = procfs.rollup_sizes(pid)
    own = counts.get("Pss_Anon", 0) + counts.get("Pss_Shmem", 0)
    shared = procfs.status_sizes(pid).get("RssShmem", 0)
    files = counts.get("Rss", 0) - counts.get("Anonymous", 0) - shared
    return MemoryFootprint(own, max(0, files))


SAMPLES_PER_SECOND = 5
GRACE_SECONDS = 5.0
LATE_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Trial(TimedSteps):
    """Steps of the script at one batch."""

    footprint: MemoryFootprint = dataclasses.field(default_factory=MemoryFootprint)
    """Of one process and its loaders, at its worst."""
    faked: bool = False
    """Whether shapes were computed and no numbers: time and footprint say nothing."""

    @property
    def tensor_peak(self) -> int:
        """Of both."""
        return max(self.forward_peak, self.update_peak)


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """What a short run showed."""

    seconds: float
    exited: bool
    """Whether the command ended by itself within that time."""
    peak_memory: int
    """Bytes that the process tree held at the worst look, what is shared counted once."""
    cpu_seconds: float
    """Of the whole tree, user and system."""
    step_seconds: float | None = None
    """Median, if it was measured."""
    snapshot_bytes: int | None = None
    """Of the state that a checkpoint saves, if it was measured."""
    trials: tuple[Trial, ...] = ()
    """Of a dry run, by batch, ascending."""
    state: ModelState | None = None
    loader_workers: int = 0
    footprint: MemoryFootprint = dataclasses.field(default_factory=MemoryFootprint)
    """``peak_memory`` in its parts."""
    failures: tuple[str, ...] = ()
    """What a dry run tried and could not, one sentence each."""

    @property
    def cores(self) -> float:
        """Mean CPU use; a start-up that only imports makes it too low."""
        return self.cpu_seconds / self.seconds if self.seconds else 0.0


def run_profile(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: pathlib.Path,
    seconds: float,
    *,
    max_memory: int | None = None,
) -> Profile:
    """Run a command for at most so many seconds and measure its process tree; then end it.

    The environment is all that it has; it ends at once beyond ``max_memory`` bytes.

    Raises:
        InputError: it cannot be started, it failed before the time was over, or it took more
            memory than it may.
    """
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                list(command),
                env=dict(environment),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
        except OSError as cause:
            raise errors.InputError(f"the profile cannot start {command[0]}: {cause}") from cause
        with process:
            try:
                found = _measure(process, seconds, max_memory)
            finally:
                _terminate(process)
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    if found.exited and process.returncode != 0:
        last = lines[-1] if lines else "it said nothing"
        message = f"the profiled command ended with {process.returncode}: {last}"
        raise errors.InputError(f"{message}; run it by hand and mend it first")
    return found


def _measure(process: subprocess.Popen[bytes], seconds: float, max_memory: int | None) -> Profile:
    began = time.monotonic()
    peak, cpu = MemoryFootprint(), {0: 0.0}
    counted, last = 0.0, began
    resident: dict[int, int] = {}
    hidden: dict[int, int] = {}
    while True:
        pids = (process.pid, *procfs.descendants(process.pid))
        for pid in pids:
            cpu[pid] = max(cpu.get(pid, 0.0), procfs.cpu_seconds(pid))
        hidden.update(unsampled_peaks(resident, pids))
        seen = measure_footprint(pids)
        peak = MemoryFootprint(max(peak.anonymous, seen.anonymous), max(peak.files, seen.files))
        if max_memory is not None and seen.total > max_memory:
            raise errors.InputError(
                f"the profiled command took {seen.total >> 20} MiB, more than the "
                f"{max_memory >> 20} MiB that it may; try it with a smaller batch"
            )
        # A look that comes very late was on a machine that stood still, and so did the command.
        now = time.monotonic()
        counted, last = counted + min(now - last, LATE_SECONDS), now
        left = seconds - counted
        ended = _wait_exit(process, min(1 / SAMPLES_PER_SECOND, max(left, 0.0)))
        if ended or left <= 0:
            spent = time.monotonic() - began
            # A process's own worst moment may have been between two looks.
            peak = MemoryFootprint(peak.anonymous + sum(hidden.values()), peak.files)
            return Profile(spent, ended, peak.total, sum(cpu.values()), footprint=peak)


def _wait_exit(process: subprocess.Popen[bytes], within: float) -> bool:
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """End the whole session, politely and then not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        _wait_exit(process, GRACE_SECONDS)
