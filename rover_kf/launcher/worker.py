# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A forked training process, which becomes the user's program.

zygote.py calls it in the child. The script runs as ``__main__``; an exception is written as JSON
before it is shown.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import pathlib
import random
import runpy
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.elastic.failures.rule import TrainingError
from rover_kf.launcher import stack_dumps
from rover_kf.system import process_end

MAX_CAUSES = 8
"""Exceptions that led to the last one, looked at; more would be a ring."""


def run(rank_env: dict[str, Any], launch: dict[str, Any]) -> None:
    """Run the user's program in this process, and end the process."""
    resident = frozenset(sys.modules)
    os.environ.update(rank_env["variables"])
    stack_dumps.register_handler(rank_env["stack_file"])
    _print_whole_lines()
    _reseed()
    error_file = pathlib.Path(rank_env["error_file"])
    end(_outcome(error_file, launch), error_file, resident)


def _outcome(error_file: pathlib.Path, launch: dict[str, Any]) -> int:
    try:
        _run_program(launch)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return int(ended.code or 0)
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException as error:  # noqa: BLE001 - the user's program may raise anything
        _write_error(error, error_file)
        shown = error.with_traceback(_user_frames(error))
        sys.excepthook(type(error), shown, shown.__traceback__)
        return 1
    return 0


def end(
    code: int, error_file: pathlib.Path | None = None, resident: Collection[str] | None = None
) -> NoReturn:
    """End as Python does, after the Checkpointers are closed.

    In this order: threads that the user's program waits for, Checkpointers, the exit code, exit
    functions, finalizers and open files. ``error_file`` is for an error of a Checkpointer that ends
    a program without one. See ``process_end.leave`` for ``resident``.
    """
    _run_ending(threading._shutdown)  # type: ignore[attr-defined] # noqa: SLF001 - as multiprocessing does
    failed = process_end.run_closers()
    if failed is not None and code in (0, names.EXIT_DRAINED):
        code = process_end.FAILED
        if error_file is not None:
            _write_error(failed, error_file)
    # Libraries' exit functions collect garbage, and that loses what garbage has not written.
    process_end.flush_open_files()
    _run_ending(atexit._run_exitfuncs)  # noqa: SLF001 - the only way to run them without finalisation
    process_end.leave(code, resident)


def _run_ending(part: Callable[[], None]) -> None:
    try:
        part()
    except BaseException:  # noqa: BLE001 - an exit function may raise anything, the end comes
        traceback.print_exc()


def _run_program(launch: dict[str, Any]) -> None:
    target = launch["target"]
    if launch["program"]:
        _exec_program(target, launch["arguments"])
    sys.argv = [target, *launch["arguments"]]
    if launch["module"]:
        sys.path.insert(0, str(pathlib.Path.cwd()))
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    if not pathlib.Path(target).exists():
        raise errors.InputError(f"there is no script {target} in {pathlib.Path.cwd()}")
    sys.path.insert(0, str(pathlib.Path(target).resolve().parent))
    runpy.run_path(target, run_name="__main__")


def _exec_program(target: str, arguments: Sequence[str]) -> NoReturn:
    """Nothing of Python is left: how it ends, only its exit code and its stderr tell."""
    _flush()
    try:
        os.execvp(target, [target, *arguments])  # noqa: S606 - what the user asks for
    except OSError as cause:
        message = f"{target} cannot be started as a program (--no-python): {cause.strerror}"
        raise errors.InputError(message) from cause


def _print_whole_lines() -> None:
    """Each line is one write: under -u every word of a print is one, and ranks share the log."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where the descriptor is closed
            stream.reconfigure(line_buffering=True, write_through=False)


def _reseed() -> None:
    # The forked generators would all continue alike; a fresh Python seeds them by chance.
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _write_error(error: BaseException, path: pathlib.Path) -> None:
    text = "".join(traceback.format_exception(type(error), error, _user_frames(error)))
    causes = _causes(error)
    record = TrainingError(
        type=type(error).__name__,
        bases=_classes(error),
        message=str(error)[:4000],
        traceback=text[-16000:],
        raised_at=time.time(),
        causes=tuple(name for cause in causes for name in _classes(cause)),
        chain=tuple(f"{type(cause).__name__}: {str(cause)[:1000]}" for cause in causes),
    )
    with contextlib.suppress(OSError):  # without the file the exit code still tells
        path.write_bytes(codec.dumps(record))


def _classes(error: BaseException) -> tuple[str, ...]:
    return tuple(kind.__name__ for kind in type(error).__mro__[:-1])


def _causes(error: BaseException) -> list[BaseException]:
    """The exceptions that led to it, as a traceback shows them."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(found) < MAX_CAUSES:
        hidden = cause.__suppress_context__
        cause = cause.__cause__ or (None if hidden else cause.__context__)
        if cause is not None:
            found.append(cause)
    return found


def _user_frames(error: BaseException) -> types.TracebackType | None:
    """The traceback without our frames and runpy's, as Python itself would show it."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in ours:
        frames = frames.tb_next
    return frames


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed by the user, or a broken pipe
            stream.flush()
