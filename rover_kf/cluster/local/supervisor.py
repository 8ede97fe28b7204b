# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The process above one container's command: what a pod sandbox's init is to a container.

Run as ``python -I -S supervisor.py CONTROL_FD COUNT FOLDER… COMMAND…`` by ``container.py``. It
starts the command in a session of its own and ends with its exit code (128 + signal if a signal
ended it).
When the command has ended, every process that it left behind is killed, as the kernel does with
a container's. The control pipe brings orders (``T``: SIGTERM to the command, ``K``: kill all);
its end means that the embedded cluster is gone, however it went: everything is killed, and the
pod's own folders are removed. So it is a second after this process got another parent, since a
child that the cluster's process has forked may hold the pipe open. Each supervisor of a pod removes
them after it has killed what was its own, so that the last one finds nobody who writes there.

A subreaper, so that no descendant escapes by a double fork; standard library only, so that it
starts in some 20 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import select
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def arguments(folders: Sequence[pathlib.Path], command: Sequence[str]) -> list[str]:
    """What follows CONTROL_FD on the command line."""
    return [str(len(folders)), *map(os.fspath, folders), *command]


def descendants(root: int) -> list[int]:
    """Processes below ``root`` at this moment, nearest first."""
    children: dict[int, list[int]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(children.get(root, []))
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) refused")


def _start(command: list[str]) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.execvp(command[0], command)  # noqa: S606 - no shell is the point
    except FileNotFoundError:
        sys.stderr.write(f"{command[0]}: no such program\n")
        os._exit(127)
    except OSError as cause:
        sys.stderr.write(f"{command[0]}: {cause}\n")
    os._exit(126)


def _kill_all() -> None:
    """Kill and reap until no process is left below this one."""
    while True:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _remove(folders: Sequence[str]) -> None:
    import shutil  # noqa: PLC0415 - a third of the time that a start takes, for a rare end

    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _reap(child: int) -> int | None:
    """Reap what has ended; the command's exit code once it is among them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0:
            return None
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def main(control: int, folders: list[str], command: list[str]) -> int:
    """Supervise until the command has ended; its exit code."""
    os.set_inheritable(control, False)  # noqa: FBT003 - os takes it so
    cluster = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    child = _start(command)
    code = None
    while code is None:
        ready, _, _ = select.select([control, wake], [], [], 1.0)
        orders = os.read(control, 64) if control in ready else None
        gone = orders == b"" or os.getppid() != cluster
        if gone or (orders and b"K" in orders):
            _kill_all()
            _remove(folders if gone else [])
            return 128 + signal.SIGKILL
        if orders:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        if wake in ready:
            os.read(wake, 4096)
        code = _reap(child)
    _kill_all()
    return code


if __name__ == "__main__":
    begin = 3 + int(sys.argv[2])
    sys.exit(main(int(sys.argv[1]), sys.argv[3:begin], sys.argv[begin:]))
