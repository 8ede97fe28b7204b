# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What decides the exit code of a process, in processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

BEGIN = """
import atexit, sys, threading
from rover_kf.launcher import worker
from rover_kf.system import process_end

def close(name, error=None):
    print("close", name)
    if error is not None:
        raise error
"""


def _run(script: str, folder) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(script)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("code", "error", "expected"),
    [
        (0, "None", 0),
        (5, "None", 5),
        (0, "OSError('lost')", 1),
        (143, "None", 143),
        (143, "OSError('lost')", 1),
        (5, "OSError('lost')", 5),
    ],
)
def test_a_closer_that_fails_makes_the_code_of_a_worker(tmp_path, code, error, expected):
    """Of a program that ended well, or had left for a change of size. Closers run after threads
    and before exit functions; the newest first, each of them."""
    ended = _run(
        f"""
        import pathlib
        process_end.register(lambda: close("first"))
        process_end.register(lambda: close("second", {error}))
        atexit.register(print, "exit function")
        threading.Thread(target=print, args=("thread",)).start()
        worker.end({code}, pathlib.Path("error"))
        """,
        tmp_path,
    )
    assert ended.returncode == expected, ended.stderr
    assert ended.stdout.split("\n") == [
        "thread", "close second", "close first", "exit function", "",
    ]  # fmt: skip
    assert (tmp_path / "error").exists() is (expected == 1)
    assert ("OSError: lost" in ended.stderr) is (error != "None")


def test_a_closer_that_fails_makes_the_code_of_any_process(tmp_path):
    """Of one that torchrun or Python started; what it had open is written. A closer that was
    withdrawn does not run."""
    script = """
    file = open("file", "w")
    file.write("kept")
    withdrawn = lambda: close("withdrawn")
    process_end.register(withdrawn)
    process_end.unregister(withdrawn)
    process_end.register(lambda: close("one", {}))
    """
    good, bad = (_run(script.format(error), tmp_path) for error in ("None", "OSError('lost')"))
    assert (good.returncode, good.stdout) == (0, "close one\n")
    assert (bad.returncode, bad.stdout) == (1, "close one\n")
    assert "OSError: lost" in bad.stderr
    assert (tmp_path / "file").read_text() == "kept"


def test_a_file_that_cannot_be_written_is_shown(tmp_path):
    """A full device: the code stays, as where Python ends; the other files are written."""
    ended = _run(
        """
        full, file = open("/dev/full", "w"), open("file", "w")
        full.write("lost"), file.write("kept")
        worker.end(0)
        """,
        tmp_path,
    )
    assert ended.returncode == 0
    assert "an open file could not be written at the end" in ended.stderr
    assert "No space left on device" in ended.stderr
    assert (tmp_path / "file").read_text() == "kept"
