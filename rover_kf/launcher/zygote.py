# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The process that every training process is forked from, with torch loaded where it is used.

zygote_client.py starts it once a pod, for the agent, and speaks to it over a SOCK_SEQPACKET pair:
one JSON object a message. It stays single-threaded and never initialises CUDA, so that a fork of
it is a fresh start but for the imports. A round's store and the count of accelerators need threads
or CUDA: each has a child of its own. Every child, and this process itself, dies with its parent
(PR_SET_PDEATHSIG): a killed launcher leaves nothing behind.

    agent → zygote   {"do": "spawn", "place": {…}, "launch": {…}}    {"do": "kill", "signal": 9}
                     {"do": "stacks", "files": {"0": "…"}}
                     {"do": "store", "host": "…"}  {"do": "count"}   {"do": "drop", "pid": 7}
                     {"do": "check", "task": {…}}   {"do": "end checks"}
    zygote → agent   {"event": "loading", "seconds": 1.5}    (torch is there, after so long)
                     {"event": "ready"}            {"event": "store", "pid": 7, "port": 4711}
                     {"event": "ended", "pid": 7, "code": 1}    (a store or a count)
                     {"event": "count", "gpu": 0, "cpu": 2}
                     {"event": "exited", "local_rank": 0, "code": -9}
                     {"event": "checked", "local_rank": 0, …}       (node_check/worker.py)

A descriptor that comes with "spawn" becomes the training process's stderr. A store that was asked
for while torch was loaded opens before the rest is.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from rover_kf.launcher import preload, stack_dumps, worker
from rover_kf.launcher.node_check import worker as node_check_worker

PR_SET_PDEATHSIG = 1
LONGEST_MESSAGE = 1 << 20
STDERR = 2


@dataclasses.dataclass(slots=True)
class Zygote:
    """The loop; ``serve`` returns in a child with what the child has to run."""

    control: socket.socket
    libc: Any
    children: dict[int, int] = dataclasses.field(default_factory=dict)
    """Local rank by process, of training processes not reaped yet."""
    services: set[int] = dataclasses.field(default_factory=set)
    """Stores, counters and checks not reaped yet."""
    checks: set[int] = dataclasses.field(default_factory=set)
    """Of these, processes that measure."""

    def serve(self) -> Callable[[], None]:
        """Obey until the agent goes; the returned function is a child's work."""
        read_end, write_end = socket.socketpair()
        write_end.setblocking(False)  # noqa: FBT003 - the socket's own API
        signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._reap()  # what ended before
        with selectors.DefaultSelector() as selector:
            selector.register(self.control, selectors.EVENT_READ)
            selector.register(read_end, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is read_end:
                        read_end.recv(4096)
                        self._reap()
                        continue
                    work = self._read_command()
                    if work:
                        signal.set_wakeup_fd(-1)
                        read_end.close()
                        write_end.close()
                        return work

    def handle_pending(self) -> Callable[[], None] | None:
        """Obey what was ordered so far; a function is a child's work, as of ``serve``."""
        while select.select([self.control], [], [], 0.0)[0]:
            if work := self._read_command():
                return work
        return None

    def _read_command(self) -> Callable[[], None] | None:
        message, descriptors, _, _ = socket.recv_fds(
            self.control, LONGEST_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC
        )
        if not message:
            return lambda: None
        work = self._handle(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return work

    def _handle(
        self, command: dict[str, Any], descriptors: Sequence[int]
    ) -> Callable[[], None] | None:
        if command["do"] == "spawn":
            place = command["place"]
            pid = self._fork()
            if pid == 0:
                self.control.close()
                for descriptor in descriptors:
                    os.dup2(descriptor, STDERR)
                return functools.partial(worker.run, place, command["launch"])
            self.children[pid] = place["local_rank"]
        elif command["do"] in ("store", "count"):
            pid = self._fork()
            if pid == 0 and command["do"] == "store":
                return functools.partial(serve_store, self.control, command["host"])
            if pid == 0:
                return functools.partial(report_device_counts, self.control)
            self.services.add(pid)
        elif command["do"] == "check":
            pid = self._fork()
            if pid == 0:
                tell = functools.partial(_send, self.control)
                return functools.partial(node_check_worker.run, command["task"], tell)
            self.services.add(pid)
            self.checks.add(pid)
        else:
            self._signal(command)
        return None

    def _signal(self, command: dict[str, Any]) -> None:
        if command["do"] == "kill":
            for pid in self.children:
                _kill_group(pid, command["signal"])
        elif command["do"] == "stacks":
            for pid, local_rank in self.children.items():
                stack_dumps.request_dump(pid, command["files"][str(local_rank)])
        elif command["do"] == "end checks":
            for pid in self.checks:
                _kill_group(pid, signal.SIGKILL)
        elif command["do"] == "drop" and command["pid"] in self.services:
            os.kill(command["pid"], signal.SIGKILL)

    def _fork(self) -> int:
        """Fork; 0 in the child, which dies with this process."""
        parent = os.getpid()
        with warnings.catch_warnings():
            # A library may keep an idle thread; the child does not use it.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            return pid
        self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return 0

    def _reap(self) -> None:
        while self.children or self.services:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            pid = ended.si_pid
            # Whatever it had started itself (data loaders) is of its group and has no use now;
            # until it is reaped, nobody else can have its number.
            _kill_group(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            local_rank = self.children.pop(pid, None)
            if local_rank is None:
                self.services.discard(pid)
                self.checks.discard(pid)
                _send(self.control, {"event": "ended", "pid": pid, "code": code})
                continue
            _send(self.control, {"event": "exited", "local_rank": local_rank, "code": code})


def serve_store(control: socket.socket, host: str) -> None:
    """Open a TCPStore, say its port, keep it until killed; without torch a port that is kept."""
    opened = _open_store(host) if preload.has_torch(os.environ) else _open_port(host)
    _send(control, {"event": "store", "pid": os.getpid(), "port": opened[1]})
    control.close()
    while True:
        time.sleep(3600)


def _open_store(host: str) -> tuple[object, int]:
    # torch re-exports it without saying so.
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # noqa: PLC0415

    store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    return store, store.port


def _open_port(host: str) -> tuple[object, int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.create_server((host, 0), family=family)
    return held, held.getsockname()[1]


def report_device_counts(control: socket.socket) -> None:
    """Say how many processes ``auto`` means: one an accelerator, else one a CPU."""
    import torch  # noqa: PLC0415 - loaded in this process only

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    counted = {"gpu": gpus, "cpu": os.cpu_count() or 1}
    _send(control, {"event": "count", **counted})


def main(control_fd: int) -> None:
    """Load what is slow, then serve; called in a process of its own by zygote_client.py."""
    begun = time.monotonic()
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    control = socket.socket(fileno=control_fd)
    zygote = Zygote(control, libc)
    # Looks for garbage take a quarter of the time, and find next to nothing: modules stay.
    gc.disable()
    preload.load_first(os.environ)
    _send(control, {"event": "loading", "seconds": time.monotonic() - begun})
    work = zygote.handle_pending()
    if work is None:
        preload.load_rest(os.environ)
        gc.freeze()
        gc.enable()
        _send(control, {"event": "ready"})
        work = zygote.serve()
    work()


def _kill_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        # It is not its group's leader yet, or runs as another user.
        os.kill(pid, number)


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    try:
        control.send(json.dumps(message).encode())
    except OSError:
        # The agent is gone; this process ends with it.
        sys.exit(1)
