# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Runs another script, and needs more memory from the first SIGUSR1 on, also when started again.

``hungry_server.py MIB SCRIPT …``: so many MiB. A marker in /tmp, which the pod keeps, tells the
next process of the same pod.
"""

import pathlib
import runpy
import signal
import sys
import threading

MARKER = pathlib.Path("/tmp/hungry")
_kept: list[bytearray] = []


def eat(mebibytes: int) -> None:
    """Wait for the signal, then write to so much memory."""
    if not MARKER.exists():
        signal.sigwait({signal.SIGUSR1})
        MARKER.touch()
    _kept.extend(bytearray(b"x") * (1 << 20) for _ in range(mebibytes))


def main() -> None:
    """Begin to listen before anything else starts threads: they inherit what is blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    mebibytes, script, *words = sys.argv[1:]
    threading.Thread(target=eat, args=(int(mebibytes),), daemon=True).start()
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")


main()
