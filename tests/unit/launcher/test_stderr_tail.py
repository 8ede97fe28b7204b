# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""StderrTail with real processes: every byte passed on at once, the end kept, nobody held up."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from rover_kf.launcher import stderr_tail
from rover_kf.launcher.stderr_tail import MAX_BYTES, StderrTail
from tests.support.waiting import eventually


class Log:
    """A pipe that stands for the container's stderr, read by a thread."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self.data = b""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while data := os.read(self._read_end, 1 << 16):
            self.data += data

    def close(self) -> None:
        os.close(self.write_end)
        self._thread.join()
        os.close(self._read_end)


@pytest.fixture
def log() -> Iterator[Log]:
    with contextlib.closing(Log()) as opened:
        yield opened


def run(tail: StderrTail, *command: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stderr=tail.write_end)
    tail.close_write_end()
    return process


def test_all_bytes_arrive(log):
    """A megabyte of chance, which is no text and has no lines, arrives as it was written."""
    given = random.Random(1).randbytes(1 << 20)
    tail = StderrTail(log.write_end)
    code = "import random, sys; sys.stderr.buffer.write(random.Random(1).randbytes(1 << 20))"
    assert run(tail, sys.executable, "-S", "-c", code).wait(60) == 0
    tail.flush()
    eventually(lambda: len(log.data) == len(given))
    assert log.data == given
    assert sum(len(data) for _, data in tail._kept) <= MAX_BYTES + stderr_tail._CHUNK


def test_end_is_known_when_the_process_has_ended(log):
    """Lines, half a line and a progress bar; at once, though a grandchild keeps the pipe open."""
    tail = StderrTail(log.write_end)
    script = "(exec sleep 100) & printf 'one\\n50%%\\r100%%\\rlast' >&2; echo $!"
    process = subprocess.Popen(["sh", "-c", script], stderr=tail.write_end, stdout=subprocess.PIPE)
    tail.close_write_end()
    grandchild = int(process.stdout.readline())
    process.stdout.close()
    assert process.wait(60) == 0
    tail.flush()
    assert tail.lines() == ("one", "50%", "100%", "last")
    os.kill(grandchild, 9)
    eventually(lambda: tail._ended)


def test_half_a_line_is_passed_on_at_once(log):
    """Nothing is held back for a line's end: a prompt shows while its process waits."""
    tail = StderrTail(log.write_end)
    process = subprocess.Popen(
        ["sh", "-c", "printf 'half' >&2; read line"], stderr=tail.write_end, stdin=subprocess.PIPE
    )
    tail.close_write_end()
    eventually(lambda: log.data == b"half")
    process.communicate(b"go\n", timeout=60)


def test_old_lines_do_not_count(log, monkeypatch):
    """What was written long before the end is not taken for its reason."""
    tail = StderrTail(log.write_end)
    assert run(tail, "sh", "-c", "echo survived >&2").wait(60) == 0
    tail.flush()
    assert tail.lines() == ("survived",)
    monkeypatch.setattr(stderr_tail, "RECENT_SECONDS", -1.0)
    assert tail.lines() == ()


def test_reader_that_goes_away():
    """Nobody reads the container's stderr any more: the process goes on and ends as it would."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    tail = StderrTail(write_end)
    code = "import sys; sys.stderr.write('x' * 500_000 + 'end')"
    assert run(tail, sys.executable, "-S", "-c", code).wait(60) == 0
    tail.flush()
    assert tail.lines()[-1].startswith("xxx")
    os.close(write_end)
