# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's hand on its zygote: starts it, sends orders, turns its messages into events."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rover_kf.api import names
from rover_kf.launcher.arguments import LaunchSpec
from rover_kf.launcher.rank_env import RankEnv

LONGEST_MESSAGE = 1 << 20

# Not "-m": that would put the user's folder in front of the standard library while torch loads.
PROGRAM = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "from rover_kf.launcher import zygote; zygote.main(int(sys.argv[1]))"
)


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessExited:
    """A training process has ended."""

    local_rank: int
    code: int
    """Negative: the signal's number."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoreOpened:
    """A store is ready for a round to come."""

    pid: int
    port: int


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceExited:
    """A store, or the process that counted, has ended."""

    pid: int
    code: int


@dataclasses.dataclass(frozen=True, slots=True)
class DevicesCounted:
    """How many accelerators and CPUs there are."""

    gpu: int
    cpu: int


@dataclasses.dataclass(frozen=True, slots=True)
class CheckMeasured:
    """A process has measured."""

    result: Mapping[str, Any]
    """What node_check/worker.py found."""


@dataclasses.dataclass(frozen=True, slots=True)
class TorchLoaded:
    """torch is there; the rest is being loaded."""

    seconds: float
    """That torch took."""


@dataclasses.dataclass(frozen=True, slots=True)
class ZygoteReady:
    """All is loaded."""


@dataclasses.dataclass(frozen=True, slots=True)
class ZygoteDied:
    """The zygote has ended, and all training processes with it."""


class ZygoteClient:
    """A client of one zygote; events go to the agent's queue."""

    def __init__(self, events: queue.SimpleQueue[Any]) -> None:
        self._events = events
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str]) -> None:
        """Start a zygote; ZygoteReady follows when torch is loaded."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", PROGRAM, str(fd)],
                env={**environment, names.ENV_LAUNCHER: str(os.getpid())},
                pass_fds=(fd,),
                start_new_session=True,  # a terminal's Ctrl-C is the agent's to handle
            )
        self._control = ours
        threading.Thread(target=self._listen, args=(ours,), daemon=True, name="zygote").start()

    def spawn(self, rank_env: RankEnv, launch: LaunchSpec, stderr: int | None) -> None:
        """Fork a training process; ``stderr`` None: it writes to the container's own."""
        order = {"do": "spawn", "place": dataclasses.asdict(rank_env)}
        order["launch"] = dataclasses.asdict(launch)
        self._send(order, [] if stderr is None else [stderr])

    def kill(self, number: int) -> None:
        """Signal the training processes' groups; ProcessExited follows each end."""
        self._send({"do": "kill", "signal": number})

    def request_stacks(self, files: Mapping[str, str]) -> None:
        """Let training processes write their stacks to files, by local rank."""
        self._send({"do": "stacks", "files": dict(files)})

    def open_store(self, host: str) -> None:
        """Open a store; StoreOpened follows."""
        self._send({"do": "store", "host": host})

    def drop_store(self, pid: int) -> None:
        """End a store that no round uses any more."""
        self._send({"do": "drop", "pid": pid})

    def count(self) -> None:
        """Count accelerators and CPUs; DevicesCounted follows."""
        self._send({"do": "count"})

    def check(self, task: Mapping[str, Any]) -> None:
        """Measure in another process (node_check/worker.py); CheckMeasured follows."""
        self._send({"do": "check", "task": dict(task)})

    def end_checks(self) -> None:
        """End processes that still measure."""
        self._send({"do": "end checks"})

    def stop(self) -> None:
        """End the zygote and everything that it forked."""
        process, control, self._control = self._process, self._control, None
        if process is None or control is None:
            return
        process.kill()
        process.wait()
        control.shutdown(socket.SHUT_RDWR)
        control.close()

    def _send(self, command: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        if self._control is None:
            return
        try:
            socket.send_fds(self._control, [json.dumps(command).encode()], descriptors)
        except OSError:
            # It is dying; the listener sees the end of its messages and says so.
            return

    def _listen(self, control: socket.socket) -> None:
        while True:
            try:
                message = control.recv(LONGEST_MESSAGE)
            except OSError:
                message = b""
            if control is not self._control:
                return  # it was stopped on purpose
            if not message:
                self._events.put(ZygoteDied())
                return
            self._events.put(_event(json.loads(message)))


_EVENTS: Mapping[str, Callable[..., object]] = {
    "exited": ProcessExited,
    "store": StoreOpened,
    "ended": ServiceExited,
    "count": DevicesCounted,
    "loading": TorchLoaded,
    "ready": ZygoteReady,
}


def _event(message: dict[str, Any]) -> object:
    kind = message.pop("event")
    return CheckMeasured(message) if kind == "checked" else _EVENTS[kind](**message)
