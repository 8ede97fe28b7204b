# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where a training process stands, asked from outside while it may be stuck in anything.

Three processes have a part: the training process registers Python's faulthandler for a signal, the
zygote (its parent, who knows its number) sends that signal, the launcher reads the file. The
handler needs neither the interpreter's lock nor memory, so that a process that hangs in a
collective, in a system call or in an extension answers, too; one that is stopped does not.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import pathlib
import re
import signal
import threading
import time
from collections.abc import Sequence

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.faults.hang_reports import RankStack, StackReport
from rover_kf.api.status import Ack
from rover_kf.launcher.rank_env import RankEnv
from rover_kf.launcher.sidecar_requests import SidecarConnector
from rover_kf.launcher.zygote_client import ZygoteClient

SIGNAL = signal.SIGRTMIN + 9
"""Of the kernel's real-time signals, which programs leave alone (SIGUSR1 and 2 they do not)."""
PATIENCE = 2.0
"""Seconds that processes have to write."""
MAX_BYTES = 64 << 10
"""Read of one process's file; the handler itself writes at most 100 threads of 100 calls."""
_POLL_SECONDS = 0.1

_log = logging.getLogger("rover_kf")


def register_handler(path: str) -> None:
    """Let the signal write every thread's stack to the end of that file; in a training process."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with contextlib.suppress(OSError):  # a full volume: training goes on without
        # Open until the process ends: the handler cannot open anything.
        faulthandler.register(SIGNAL, file=os.open(path, flags, 0o600), all_threads=True)


def request_dump(pid: int, path: str) -> None:
    """Note in the file what the kernel says of a process, then signal it; in its parent.

    A process that does not catch the signal (it has become another program, say) is let be: the
    signal would end it.
    """
    with contextlib.suppress(OSError):  # it ends just now, or the volume is full
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        pathlib.Path(path).write_text(_field(status, "State") + "\n")
        if int(_field(status, "SigCgt"), 16) >> (SIGNAL - 1) & 1:
            os.kill(pid, SIGNAL)


def start_collection(
    zygote: ZygoteClient,
    client: SidecarConnector,
    rank_envs: Sequence[RankEnv],
    *,
    pod: str,
    number: int,
) -> None:
    """Collect the stacks of a pod's training processes and post them, in a thread."""

    def collect() -> None:
        for place in rank_envs:
            # Emptied, not removed: the process has it open.
            pathlib.Path(place.stack_file).write_bytes(b"")
        zygote.request_stacks({str(place.local_rank): place.stack_file for place in rank_envs})
        report = StackReport(pod, number, _collect(rank_envs))
        try:
            client.request(names.PATH_STACKS, report, Ack)
        except errors.RoverError as error:
            _log.warning("rover-kf: the stacks of this pod's processes were not sent: %s", error)

    threading.Thread(target=collect, daemon=True, name="stacks").start()


def _collect(rank_envs: Sequence[RankEnv]) -> tuple[RankStack, ...]:
    until, before = time.monotonic() + PATIENCE, None
    while True:
        found = tuple(_read(place) for place in rank_envs)
        whole = all(one.text for one in found)
        if (whole and found == before) or time.monotonic() > until:
            return found
        before = found
        time.sleep(_POLL_SECONDS)


def _read(rank_env: RankEnv) -> RankStack:
    try:
        with pathlib.Path(rank_env.stack_file).open("rb") as file:
            state, _, text = file.read(MAX_BYTES).decode(errors="replace").partition("\n")
    except FileNotFoundError:
        state, text = "", ""
    return RankStack(rank_env.rank, state, text)


def _field(status: str, name: str) -> str:
    found = re.search(rf"^{name}:\s*(.*)$", status, re.MULTILINE)
    return found[1] if found else "0"
