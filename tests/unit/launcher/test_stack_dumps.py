# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Stacks asked of other processes, for real."""

from __future__ import annotations

import subprocess
import sys

from rover_kf.launcher import stack_dumps
from tests.support.waiting import eventually

STUCK = """
import sys, threading
from rover_kf.launcher import stack_dumps
stack_dumps.register_handler(sys.argv[1])

def stuck():
    print("here", flush=True)
    threading.Lock().acquire() or threading.Event().wait()
    sys.stdin.read()

stuck()
"""


def test_a_stuck_process_tells_where(tmp_path):
    """Twice: each request empties the file first, and the process goes on as it was."""
    file = tmp_path / "stacks"
    command = [sys.executable, "-c", STUCK, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"here\n"
        for _ in range(2):
            stack_dumps.request_dump(process.pid, str(file))
            eventually(lambda: "in <module>" in file.read_text(), within=60)
            text = file.read_text()
            assert text.count("in stuck") == 1
            assert text.partition("\n")[0] in ("S (sleeping)", "R (running)")
        process.communicate(b"")
        assert process.returncode == 0


def test_a_process_that_does_not_catch_it_is_let_be(tmp_path):
    """The signal would end it; what the kernel says of it is noted all the same."""
    file = tmp_path / "stacks"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        # It has become cat once its own program is what the kernel names.
        eventually(
            lambda: stack_dumps.request_dump(process.pid, str(file)) or file.read_text(), within=60
        )
        process.communicate(b"")
        assert process.returncode == 0
    assert file.read_text().count("\n") == 1


def test_a_process_that_is_gone(tmp_path):
    """Nothing is noted, nothing is raised."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    stack_dumps.request_dump(process.pid, str(tmp_path / "stacks"))
    assert not (tmp_path / "stacks").exists()
