# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Launchers whose zygotes find torch loaded: forked from a process that has it, not started.

To load it takes each pod three seconds of a core. All else is as the launcher has it: the zygote
has a session of its own, ends with its launcher, and tells what it has loaded; its parent is a
keeper in the launcher's place. The other way is ``Job(..., warm=False)``: tests of launcher and
zygote themselves.

Run by ``python -c``, with the descriptor of a socket, it forks for each message.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence

from rover_kf.launcher import zygote_client
from tests.support.process_pool.fork_server import Forked, become

ROOT = pathlib.Path(__file__).parents[3]
ADDRESS = "WARM_ZYGOTES"
"""Variable of a launcher: where the process with torch listens."""
# Not as a script: the path is a zygote's. Nor are there looks for garbage, as there.
_PROGRAM = (
    "import gc, sys; gc.disable(); sys.path[:] = [p for p in sys.path if p]; "
    "from tests.support.process_pool import warm_zygotes; warm_zygotes.main(int(sys.argv[1]))"
)
_LONGEST_MESSAGE = 1 << 18


@functools.cache
def address() -> str:
    """Where this process's launchers find the process with torch; starts it."""
    place = f"\0warm-zygotes-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", _PROGRAM, str(listener.fileno())],
            # As a launcher has it: torch reads it when it is loaded.
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            pass_fds=(listener.fileno(),),
        )
    atexit.register(process.wait)
    atexit.register(process.kill)
    return place[1:]


def launch(main: Callable[[Sequence[str]], int], command: Sequence[str]) -> int:
    """Be a launcher; its zygote is forked elsewhere."""
    zygote_client.subprocess = types.SimpleNamespace(Popen=_fork)  # type: ignore[assignment]
    return main(command)


def _fork(
    _: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], start_new_session: bool
) -> Forked:
    """A zygote, as subprocess.Popen starts it."""
    assert start_new_session
    ending, told = os.pipe()
    asked = {"in": str(pathlib.Path.cwd()), "with": dict(env), "ends with": os.getpid()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.connect("\0" + os.environ[ADDRESS])
        streams = [told, *pass_fds, 1, 2]
        socket.send_fds(channel, [json.dumps(asked).encode()], streams)
        number, (descriptor,), *_ = socket.recv_fds(channel, 32, 1)
    os.close(told)
    return Forked(int(number), descriptor, ending)


def main(listening: int) -> None:
    """Load torch, and fork a zygote for each who connects."""
    from rover_kf.launcher import preload, zygote  # noqa: PLC0415 - as a zygote loads them

    preload.load_first(os.environ)
    preload.load_rest(os.environ)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Keepers that end are gone at once.
    with socket.socket(fileno=listening) as listener:
        while True:
            channel, _ = listener.accept()
            if not os.fork():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                _keep(channel, zygote.main)
            channel.close()


def _keep(channel: socket.socket, serve) -> None:
    """Fork the zygote; end with its launcher, as the zygote does then, or tell how it ended."""
    message, (told, control, *standard), *_ = socket.recv_fds(channel, _LONGEST_MESSAGE, 4)
    asked = json.loads(message)
    launcher = os.pidfd_open(asked["ends with"])
    child = os.fork()
    if not child:
        channel.close()
        os.close(told)
        os.close(launcher)
        os.setsid()
        become(asked, standard, functools.partial(serve, control))
    descriptor = os.pidfd_open(child)
    socket.send_fds(channel, [str(child).encode()], [descriptor])
    for held in (channel.detach(), control, *standard):
        os.close(held)
    select.select([launcher, descriptor], [], [])
    if not select.select([descriptor], [], [], 0)[0]:
        os._exit(0)  # and the zygote is killed by the kernel
    os.write(told, str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
    os._exit(0)
