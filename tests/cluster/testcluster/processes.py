# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that outlive the command which started them, and ending exactly those later.

A record is written for each: its pid with the kernel's start time, so that a recycled pid is never
mistaken for ours. `cleanup.py` reads the records of a run that died.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
from collections.abc import Iterable, Sequence

from testcluster.errors import ClusterError
from testcluster.waiting import until

FIRST = ("nice", "-n", "-10")
"""Before the cluster's own daemons: training that fills all cores must not make nodes NotReady.
Not before containerd, whose containers would inherit it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Daemon:
    """One process, known for certain."""

    name: str
    pid: int
    started: int
    """Clock ticks after boot, from /proc/<pid>/stat: with the pid it names one process for ever."""

    def alive(self) -> bool:
        """Whether that very process still runs (a zombie does not)."""
        return start_time(self.pid) == self.started

    def signal(self, number: signal.Signals) -> None:
        """Signal it; one that has ended is no error."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


@dataclasses.dataclass(frozen=True, slots=True)
class Registry:
    """Records of daemons, one file each below the run directory."""

    directory: pathlib.Path
    logs: pathlib.Path

    def start(self, name: str, command: Sequence[str | pathlib.Path]) -> Daemon:
        """Start in the background in a session of its own, output into ``<logs>/<name>.log``."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        words = [str(word) for word in command]
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        # Not subprocess: its object complains when it is dropped while the program runs, which is
        # the point here.
        pid = os.posix_spawnp(
            words[0],
            words,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.logs / f"{name}.log"), append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        started = start_time(pid)
        if started is None:
            raise ClusterError(f"{name} ended at once; read {self.logs / name}.log")
        daemon = Daemon(name, pid, started)
        self._record(daemon)
        return daemon

    def adopt(self, name: str, pid: int) -> Daemon:
        """Record a process that something else has started for us."""
        started = start_time(pid)
        if started is None:
            raise ClusterError(f"{name} (pid {pid}) has ended already")
        daemon = Daemon(name, pid, started)
        self._record(daemon)
        return daemon

    def get(self, name: str) -> Daemon | None:
        """The recorded daemon of that name, alive or not."""
        try:
            data = json.loads((self.directory / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
        return Daemon(**data)

    def inside(self, node: str) -> list[str]:
        """Words before a command that run it inside a node's namespaces.

        Raises:
            ClusterError: the node has never been started.
        """
        init = self.get(f"{node}-init")
        if init is None:
            raise ClusterError(f"{node} has not been started")
        return ["nsenter", f"--target={init.pid}", "--net", "--mount", "--pid", "--"]

    def all(self) -> list[Daemon]:
        """Every record."""
        return [
            Daemon(**json.loads(path.read_text())) for path in sorted(self.directory.glob("*.json"))
        ]

    def stop(self, daemons: Iterable[Daemon], *, grace: float = 5.0) -> None:
        """SIGTERM, wait, SIGKILL what is left, forget them."""
        remaining = list(daemons)
        for daemon in remaining:
            daemon.signal(signal.SIGTERM)
        wait_ended(remaining, grace)
        for daemon in remaining:
            daemon.signal(signal.SIGKILL)
        wait_ended(remaining, 10)
        for daemon in remaining:
            if daemon.alive():
                raise ClusterError(f"{daemon.name} (pid {daemon.pid}) survives SIGKILL")
            (self.directory / f"{daemon.name}.json").unlink(missing_ok=True)

    def _record(self, daemon: Daemon) -> None:
        path = self.directory / f"{daemon.name}.json"
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(dataclasses.asdict(daemon)))
        partial.rename(path)


def start_time(pid: int) -> int | None:
    """Ticks after boot at which the process began; None if it has ended or is a zombie."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        _reap(pid)
        return None
    return int(fields[19])


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # another process' child: that one reaps it


def wait_ended(daemons: Iterable[Daemon], seconds: float) -> bool:
    """Whether all have ended within that time."""
    waited = list(daemons)
    return until(lambda: not any(daemon.alive() for daemon in waited), seconds=seconds, every=0.05)


def children(pid: int) -> list[int]:
    """Direct children, oldest first."""
    try:
        listed = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(word) for word in listed.split()]


def command_line(pid: int) -> str:
    """What it was started with, spaces between words; empty if it has ended."""
    try:
        return (
            pathlib.Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except (FileNotFoundError, ProcessLookupError):
        return ""
