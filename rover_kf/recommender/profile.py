# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A short real run of the user's command: what it takes of memory and CPU on this machine.

The process tree is read from /proc a few times a second; nothing of the command's output is
interpreted. Linux only, like the pods that the numbers are for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from rover_kf import errors

LOOKS_PER_SECOND = 5
GRACE_SECONDS = 5.0
_PROC = pathlib.Path("/proc")


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """What one short run showed."""

    seconds: float
    """How long it ran."""
    ended: bool
    """Whether the command ended by itself within that time."""
    peak_memory: int
    """Bytes resident, summed over the process tree, at the worst look."""
    cpu_seconds: float
    """Of the whole tree, user and system."""
    step_seconds: float | None = None
    """Median, if the caller has measured it; this run does not interpret output."""
    snapshot_bytes: int | None = None
    """Of the state that a checkpoint saves, if the caller has measured it."""

    @property
    def cores(self) -> float:
        """Mean CPU use; a start-up that only imports makes it too low."""
        return self.cpu_seconds / self.seconds if self.seconds else 0.0


def profile(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: pathlib.Path,
    seconds: float,
) -> Profile:
    """Run a command for at most so many seconds and measure its process tree; then end it.

    Raises:
        InputError: it cannot be started, or it failed before the time was over.
    """
    try:
        process = subprocess.Popen(
            list(command),
            env=dict(environment),
            cwd=cwd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as cause:
        raise errors.InputError(f"the profile cannot start {command[0]}: {cause}") from cause
    with process:
        try:
            found = _measure(process, seconds)
        finally:
            said = _end(process)
    if found.ended and process.returncode != 0:
        last = said.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        message = f"the profiled command ended with {process.returncode}: {last[0]}"
        raise errors.InputError(f"{message}; run it by hand and mend it first")
    return found


def _measure(process: subprocess.Popen[bytes], seconds: float) -> Profile:
    began = time.monotonic()
    peak, cpu = 0, {0: 0.0}
    while True:
        for pid in _tree(process.pid):
            cpu[pid] = max(cpu.get(pid, 0.0), _cpu_seconds(pid))
        peak = max(peak, sum(_resident(pid) for pid in _tree(process.pid)))
        left = seconds - (time.monotonic() - began)
        ended = _ended(process, min(1 / LOOKS_PER_SECOND, max(left, 0.0)))
        if ended or left <= 0:
            spent = time.monotonic() - began
            return Profile(spent, ended, peak, sum(cpu.values()))


def _ended(process: subprocess.Popen[bytes], within: float) -> bool:
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> bytes:
    """End the whole session, politely and then not; what the command said on stderr."""
    for number, grace in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if _ended(process, grace) and number == signal.SIGTERM:
            continue
    return process.stderr.read() if process.stderr is not None else b""


def _tree(root: int) -> tuple[int, ...]:
    """The process and its descendants, as far as they are there."""
    parents: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                parents[int(entry.name)] = int(fields[1])
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return tuple(found)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty if the process is gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    ticks = int(fields[11]) + int(fields[12]) if fields else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") if fields else 0
