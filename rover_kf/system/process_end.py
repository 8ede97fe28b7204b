# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The end of a Python process: closers that decide its exit code, then files and finalizers.

An error in an exit function leaves Python's exit code as it is. So what must succeed before a
process counts as done is registered here. The launcher's worker runs closers before its exit code
is final. In other processes an exit function runs them, and a failed one ends the process with 1.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import pathlib
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection
from typing import NoReturn

FAILED = 1
"""Exit code of a process whose closer has failed."""
_FILE = io.TextIOWrapper.__mro__[-2]
"""The base of io.IOBase: no abstract class, so a look at all objects takes no time."""
_WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair)
"""Outermost first: a text file writes to a buffer."""
_NO_STREAM = (OSError, ValueError, AttributeError)
"""Errors of a stream that is broken, closed or None."""

_closers: list[Callable[[], None]] = []


def register(close: Callable[[], None]) -> None:
    """Have a function run before the exit code is final; the newest runs first."""
    if not _closers:
        atexit.unregister(_on_python_exit)  # it counts from the last registration
        atexit.register(_on_python_exit)
    _closers.append(close)


def unregister(close: Callable[[], None]) -> None:
    """Forget a function that was registered, or was not."""
    if close in _closers:
        _closers.remove(close)


def run_closers() -> Exception | None:
    """Run and forget all closers; print what each raises.

    Returns:
        The first error; None: all have succeeded.
    """
    first: Exception | None = None
    while _closers:  # one may withdraw another
        error = _error_of(_closers.pop())
        first = first or error
    return first


def _error_of(close: Callable[[], None]) -> Exception | None:
    try:
        close()
    except Exception as error:  # noqa: BLE001 - closers may raise anything, and the others must run
        _show_error()
        return error
    return None


def leave(code: int, resident: Collection[str] | None = None) -> NoReturn:
    """End the process after its open files are flushed.

    The interpreter is not taken apart, which takes seconds with torch.

    Args:
        code: exit code.
        resident: names of modules that stay, as libraries do. The user's others are dropped with
            what they hold, and finalizers run. None: all stay, and no garbage is collected.
    """
    # Before any finalizer: a collection may close the lower part of a file first.
    flush_open_files()
    if resident is not None:
        _drop_user_modules(resident)
        gc.collect()
        flush_open_files()
    _close_encoders()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(*_NO_STREAM):
            stream.flush()
    os._exit(code & 0xFF)


def _drop_user_modules(resident: Collection[str]) -> None:
    paths = sysconfig.get_paths()
    libraries = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    kept = (*libraries, *site.getsitepackages())
    for name in sys.modules.keys() - set(resident):
        # Not by getattr: modules that load lazily answer to it by loading.
        spec = getattr(sys.modules[name], "__dict__", {}).get("__spec__")
        origin = getattr(spec, "origin", None)
        if origin and pathlib.Path(origin).is_file() and not origin.startswith(kept):
            del sys.modules[name]


def flush_open_files() -> None:
    """Flush every writer that is open; Python's own end does so file by file."""
    files = _files()
    for kind in _WRITERS:
        for file in files:
            if isinstance(file, kind):
                _attempt(file, file.flush)


def _close_encoders() -> None:
    """Close files that end with more than their bytes, such as gzip's, and still live."""
    for file in _files():
        if type(file).__module__ not in {"_io", "io"}:
            _attempt(file, file.close)
    flush_open_files()


def _files() -> list[io.IOBase]:
    return [found for found in gc.get_objects() if issubclass(type(found), _FILE)]


def _attempt(file: io.IOBase, act: Callable[[], None]) -> None:
    try:
        if not file.closed:
            act()
    except Exception:  # noqa: BLE001 - as in a finalizer, the error is shown and the end goes on
        _show_error(f"rover-kf: an open file could not be written at the end: {file!r}\n")


def _show_error(title: str = "") -> None:
    with contextlib.suppress(*_NO_STREAM):
        sys.stderr.write(title)
        traceback.print_exc()


def _on_python_exit() -> None:
    """Close in a process whose end is Python's own."""
    if run_closers() is not None:
        leave(FAILED)
