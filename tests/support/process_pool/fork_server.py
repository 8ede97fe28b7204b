# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sidecars forked from a process that has loaded them: one that loads itself takes half a second of
a core for it, and tests start hundreds.

Run as a script, with the descriptor of a socket, it forks for each message: ``rover_kf.sidecar``
whole, or a pod of checkpoint_pod. Each has a keeper, its parent, that tells how it ended.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import pathlib
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence

ROOT = pathlib.Path(__file__).parents[3]
_LONGEST_MESSAGE = 1 << 18


class Forked:
    """A process; as subprocess.Popen has it.

    Args:
        pid: its number.
        descriptor: of it, which no other process can come to mean.
        ending: what its keeper writes its exit code to.
    """

    def __init__(self, pid: int, descriptor: int, ending: int) -> None:
        self.pid, self.returncode = pid, None
        self._descriptor, self._ending = descriptor, ending

    def __del__(self) -> None:
        os.close(self._descriptor)
        os.close(self._ending)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: it has not ended in so many seconds.
        """
        if self.returncode is None:
            if not select.select([self._ending], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = int(os.read(self._ending, 16))
        return self.returncode

    def poll(self) -> int | None:
        """The same; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Signal it, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its keeper is about to tell
                signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        """SIGKILL it."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks, for as long as this one lives."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._path = {"PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env={**os.environ, **self._path},
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        self._asking = threading.Lock()
        atexit.register(self._end)

    def start(
        self,
        work: Sequence[object],
        environment: Mapping[str, str] | None = None,
        *,
        folder: pathlib.Path | None = None,
        output: int = 1,
        errors: int = 2,
    ) -> Forked:
        """Fork a process.

        Args:
            work: its kind (see ``main``) and arguments.
            environment: of it; this process's own by default.
            folder: that it runs in; this process's own by default.
            output: descriptor of its standard output.
            errors: of its standard error.
        """
        variables = dict(environment or {**os.environ, **self._path})
        asked = {"work": work, "in": str(folder or pathlib.Path.cwd()), "with": variables}
        ending, told = os.pipe()
        with self._asking:
            socket.send_fds(self._channel, [json.dumps(asked).encode()], [told, output, errors])
            number, (descriptor,), *_ = socket.recv_fds(self._channel, 32, 1)
        os.close(told)
        return Forked(int(number), descriptor, ending)

    def _end(self) -> None:
        self._channel.shutdown(socket.SHUT_RDWR)  # whoever else has the descriptor
        self._process.wait()


@functools.cache
def nursery() -> Nursery:
    """The one of this process."""
    return Nursery()


def main() -> None:
    """Fork for each message; the keeper answers with the process's number and its descriptor."""
    from rover_kf.launcher import __main__ as launcher  # noqa: PLC0415 - not needed there
    from rover_kf.sidecar import __main__ as sidecar  # noqa: PLC0415 - the same
    from tests.support.pods import checkpoint_pod  # noqa: PLC0415 - which imports this module for its tests
    from tests.support.process_pool import warm_zygotes  # noqa: PLC0415 - the same

    launch = functools.partial(warm_zygotes.launch, launcher.main)
    kinds = {"launcher": launch, "pod": checkpoint_pod.run, "sidecar": sidecar.main}
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Keepers that end are gone at once.
    channel = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, streams, *_ = socket.recv_fds(channel, _LONGEST_MESSAGE, 3)
        if not message:
            return
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asked = json.loads(message)
            kind, *arguments = asked["work"]
            os._exit(_keep(channel, asked, streams, functools.partial(kinds[kind], *arguments)))
        for stream in streams:
            os.close(stream)


def _keep(
    channel: socket.socket, asked: dict, streams: list[int], work: Callable[[], object]
) -> int:
    """Fork the process, tell of it, and in the end how it ended."""
    told, *standard = streams
    child = os.fork()
    if not child:
        channel.close()
        os.close(told)
        become(asked, standard, work)
    socket.send_fds(channel, [str(child).encode()], [os.pidfd_open(child)])
    channel.close()
    for stream in standard:
        os.close(stream)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(told, str(code).encode())
    return 0


def become(asked: dict, standard: list[int], work: Callable[[], object]) -> None:
    """Be the process until it ends."""
    for number, stream in enumerate(standard, 1):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(asked["with"])
    os.chdir(asked["in"])
    random.seed()
    code = 1
    try:
        code = work() or 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 - the process's last word
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
