# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A file or a folder that appears whole or not at all: made under another name, then renamed."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterator

from rover_kf import errors
from rover_kf.checkpoint.storage.syscalls import Syscalls


@contextlib.contextmanager
def atomic_file(out: pathlib.Path, *, force: bool) -> Iterator[pathlib.Path]:
    """Write a file at the path that is given; it takes its place when the block ends well.

    Args:
        out: where it shall stand.
        force: replace a file that stands there.

    Raises:
        InputError: something stands there that may not be replaced, or there is no such folder.
        StorageError: the file system refused.
    """
    with _translate_errors(out):
        _check_file(out, force=force)
        aside = _temporary_path(out)
        try:
            yield aside
            files = Syscalls()
            descriptor = os.open(aside, os.O_RDONLY | os.O_CLOEXEC)
            try:
                files.sync(descriptor)
            finally:
                files.close(descriptor)
            _check_file(out, force=force)
            files.rename(aside, out)
            files.sync_folder(out.parent)
        finally:
            aside.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(out: pathlib.Path, *, marker: str, force: bool) -> Iterator[pathlib.Path]:
    """Fill a folder at the path that is given; it takes its place when the block ends well.

    Args:
        out: where it shall stand.
        marker: file that tells a folder of this kind; no other folder is ever replaced.
        force: replace such a folder that stands there.

    Raises:
        InputError: something stands there that may not be replaced, or there is no such parent.
        StorageError: the file system refused.
    """
    with _translate_errors(out):
        _check_folder(out, marker, force=force)
        aside = _temporary_path(out)
        aside.mkdir()
        try:
            yield aside
            files = Syscalls()
            files.sync_folder(aside)
            _check_folder(out, marker, force=force)
            _exchange(files, aside, out)
        finally:
            if aside.exists():
                shutil.rmtree(aside)


def _exchange(files: Syscalls, aside: pathlib.Path, out: pathlib.Path) -> None:
    """Put a folder where another one may stand, which goes."""
    if not out.exists():
        files.rename(aside, out)
        files.sync_folder(out.parent)
        return
    old = _temporary_path(out)
    files.rename(out, old)
    try:
        files.rename(aside, out)
    except OSError:
        files.rename(old, out)
        raise
    files.sync_folder(out.parent)
    shutil.rmtree(old)


def _check_file(out: pathlib.Path, *, force: bool) -> None:
    _check_parent(out)
    if out.is_dir():
        raise errors.InputError(f"{out} is a folder; this format is one file")
    if not os.path.lexists(out):
        return
    if not out.is_file():
        raise errors.InputError(f"{out} exists and is no plain file; it stays")
    if not force:
        raise errors.InputError(f"{out} exists; --force replaces it")


def _check_folder(out: pathlib.Path, marker: str, *, force: bool) -> None:
    _check_parent(out)
    if not os.path.lexists(out):
        return
    if not (out.is_dir() and not out.is_symlink() and (out / marker).is_file()):
        raise errors.InputError(f"{out} exists and is no folder of this format; it stays")
    if not force:
        raise errors.InputError(f"{out} exists; --force replaces it")


def _check_parent(out: pathlib.Path) -> None:
    if not out.parent.is_dir():
        raise errors.InputError(f"{out.parent} is no folder; make it first")


def _temporary_path(out: pathlib.Path) -> pathlib.Path:
    return out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.part")


@contextlib.contextmanager
def _translate_errors(out: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        message = f"{out} cannot be written: {cause.strerror or cause}"
        raise errors.StorageError(message) from cause
