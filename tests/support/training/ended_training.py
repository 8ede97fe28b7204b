# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A program that leaves files open, threads running and finalizers to run.

    ended_training.py FOLDER END

END is "return", "exit" (sys.exit(0)), or "raise". All it writes lies in FOLDER.
"""

from __future__ import annotations

import atexit
import csv
import gc
import gzip
import logging  # noqa: F401 - a library that the program changes
import pathlib
import sys
import threading
import weakref
import zipfile

from tests.support.training import ended_helper

FOLDER = pathlib.Path(sys.argv[1])


class Held:
    """An object that is a part of a cycle, with a file."""

    def __init__(self, name: str) -> None:
        self.name, self.itself = name, self
        self.file = (FOLDER / f"{name}.held").open("w")
        self.file.write("held\n")

    def __del__(self) -> None:
        note(f"finalizer of {self.name}")


def note(line: str) -> None:
    """Append to the order of events; a function makes the module's names a cycle."""
    with (FOLDER / "order").open("a") as order:
        order.write(f"{line}\n")


def late() -> None:
    """Wait until the main thread has ended."""
    threading.main_thread().join()
    text.write("from a thread\n")
    note("thread")


text = (FOLDER / "text").open("w")
text.write("1,0.5\n")
rows = csv.writer((FOLDER / "rows.csv").open("w", newline=""))
rows.writerow([1, 0.5])
packed = gzip.open(FOLDER / "packed.gz", "wt")  # noqa: SIM115 - it stays open
packed.write("packed\n")
binary = (FOLDER / "binary").open("wb")
binary.write(b"\0\1")
archive = zipfile.ZipFile(FOLDER / "archive.zip", "w")
archive.writestr("name", "content")
ended_helper.file = (FOLDER / "helper").open("w")
ended_helper.file.write("of another module\n")
logging_file = sys.modules["logging"].ours = (FOLDER / "library").open("w")  # type: ignore[attr-defined]
logging_file.write("kept by a library\n")
held = Held("global")
atexit.register(note, "exit function")
weakref.finalize(held, note, "weak finalizer")
threading.Thread(target=late).start()
gc.collect()  # so that none follows before the end
Held("garbage")
print("a line without an end", end="")
if sys.argv[2] == "exit":
    sys.exit(0)
if sys.argv[2] == "raise":
    raise ValueError(sys.argv[2])
