# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A whole state written in a format that others read.

A safetensors file is also a snapshot of a world of one. A folder has the files that a
DirectoryCheckpointer has saved.

A file or a folder appears whole or not at all: it is made under another name, then renamed.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pathlib
import shutil
import tempfile
import typing
import uuid
from collections.abc import Iterator
from typing import Literal

from rover_kf import errors
from rover_kf.checkpoint.format.manifest import Manifest
from rover_kf.checkpoint.format.snapshot import LENGTH_BYTES
from rover_kf.checkpoint.storage.syscalls import Syscalls
from rover_kf.checkpoint_tools.consolidated_state import ConsolidatedState, open_state
from rover_kf.checkpoint_tools.locate import locate
from rover_kf.trainer.directory import checkpointer, folder_scan


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
        _check_place(out, None, force=force)
        aside = _temporary_path(out)
        try:
            yield aside
            files = Syscalls()
            descriptor = os.open(aside, os.O_RDONLY | os.O_CLOEXEC)
            try:
                files.sync(descriptor)
            finally:
                files.close(descriptor)
            _check_place(out, None, force=force)
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
        _check_place(out, marker, force=force)
        aside = _temporary_path(out)
        aside.mkdir()
        try:
            yield aside
            files = Syscalls()
            files.sync_folder(aside)
            _check_place(out, marker, force=force)
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


def _check_place(out: pathlib.Path, marker: str | None, *, force: bool) -> None:
    """Refuse a place where something stands that may not be replaced; no marker: by a file."""
    if not out.parent.is_dir():
        raise errors.InputError(f"{out.parent} is no folder; make it first")
    if marker is None and out.is_dir():
        raise errors.InputError(f"{out} is a folder; this format is one file")
    if not os.path.lexists(out):
        return
    if marker is None:
        same, kind = out.is_file(), "plain file"
    else:
        same = out.is_dir() and not out.is_symlink() and (out / marker).is_file()
        kind = "folder of this format"
    if not same:
        raise errors.InputError(f"{out} exists and is no {kind}; it stays")
    if not force:
        raise errors.InputError(f"{out} exists; --force replaces it")


def _temporary_path(out: pathlib.Path) -> pathlib.Path:
    return out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.part")


@contextlib.contextmanager
def _translate_errors(out: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        message = f"{out} cannot be written: {cause.strerror or cause}"
        raise errors.StorageError(message) from cause


_FORMAT = {"format": "pt"}
"""Libraries that share models want to know which framework's tensors they are."""


def write_safetensors(state: ConsolidatedState, path: pathlib.Path) -> None:
    """Write the file; memory does not grow with the state.

    Args:
        state: to write.
        path: of the new file.

    Raises:
        CorruptSnapshot: a file of the checkpoint is damaged.
        StorageError: the storage cannot be read.
        OSError: the file cannot be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        state.fill_file(descriptor)
        head = _add_label(state.assembly.header)
        os.pwrite(descriptor, head, 0)
    finally:
        os.close(descriptor)


def _add_label(header: bytes) -> bytes:
    """The header with the label; as it is if there is no room for it."""
    room = len(header) - LENGTH_BYTES
    parsed = json.loads(header[LENGTH_BYTES:])
    parsed["__metadata__"] = {**_FORMAT, **parsed["__metadata__"]}
    text = json.dumps(parsed, separators=(",", ":")).encode()
    return header[:LENGTH_BYTES] + text.ljust(room) if len(text) <= room else header


_FOLDER_KEY, _CONTENT, _LATER = "folder", {"files", "folders", "links"}, {"modes"}
"""What older versions have not saved stands last."""


def is_directory_state(state: ConsolidatedState) -> bool:
    """Whether the state is a folder and nothing else."""
    tree = state.tree()
    inside = tree.get(_FOLDER_KEY)
    return len(tree) == 1 and isinstance(inside, dict) and inside.keys() - _LATER == _CONTENT


def write_directory(state: ConsolidatedState, path: pathlib.Path) -> None:
    """Put the files, folders and links where they were, below a folder.

    Args:
        state: to write; it is one.
        path: of the folder; empty.

    Raises:
        CorruptSnapshot: a file of the checkpoint is damaged, or a path leads out of the folder.
        StorageError: the storage cannot be read.
        OSError: a file cannot be written.
    """
    listed = folder_scan.from_plain(state.tree())
    with tempfile.TemporaryFile(dir=path.parent) as scratch:
        state.fill_file(scratch.fileno())
        with mmap.mmap(scratch.fileno(), state.assembly.length, access=mmap.ACCESS_READ) as buffer:
            checkpointer.write_files(listed, state.content, buffer, path)


Format = Literal["safetensors", "torch", "dcp", "folder"]
_DCP_MARK = ".metadata"


def export(
    state: ConsolidatedState, form: Format, out: pathlib.Path, *, force: bool = False
) -> None:
    """Write a state; what is read of the checkpoint is verified, and OUT is whole or not there.

    Args:
        state: of the rank whose own tensors and plain values are wanted.
        form: ``safetensors`` (one file, tensors by name), ``torch`` (one file, nested dicts) or
            ``dcp`` (a folder of torch.distributed.checkpoint); or ``folder``: the files that a
            DirectoryCheckpointer has saved.
        out: file or folder to make.
        force: replace what stands there, if it is of that kind.

    Raises:
        InputError: OUT may not be replaced, the format is not for this state, or for a type in it,
            or torch is needed and not installed.
        CorruptSnapshot: the checkpoint is damaged.
        StorageError: the storage cannot be read, or OUT cannot be written.
    """
    if form == "safetensors":
        with atomic_file(out, force=force) as path:
            write_safetensors(state, path)
        return
    is_folder = is_directory_state(state)
    if is_folder != (form == "folder"):
        allowed = "folder or safetensors" if is_folder else "safetensors, torch or dcp"
        raise errors.InputError(f"--format {form} is not for what this script saved: {allowed} is")
    if form == "folder":
        # Whose files they are nothing tells: no folder that stands there is replaced.
        with atomic_folder(out, marker="", force=False) as path:
            write_directory(state, path)
        return
    try:
        # Slow to import, and not everybody who looks at checkpoints has it.
        from rover_kf.checkpoint_tools import torch_files  # noqa: PLC0415
    except ImportError as cause:
        raise errors.InputError(
            f"--format {form} needs torch: pip install 'rover-kf[torch]', or use safetensors"
        ) from cause
    if form == "torch":
        with atomic_file(out, force=force) as path:
            torch_files.write_file(state, path)
        return
    with atomic_folder(out, marker=_DCP_MARK, force=force) as path:
        torch_files.write_folder(state, path)


def export_model(
    path: str, out: pathlib.Path, *, job: str = "", step: int = -1, rank: int = 0, form: str
) -> Manifest:
    """Write one checkpoint whole; the manifest of which.

    Args:
        path: what ``checkpoint.path`` says, or with the job's name, or one checkpoint of it.
        out: file or folder to make.
        job: its name, where the path does not say it.
        step: of which; below 0: the newest that is whole.
        rank: whose own tensors and plain values are taken.
        form: safetensors, torch, dcp or folder.

    Raises:
        InputError: there is no such checkpoint or format, or it is not for this state.
        CorruptSnapshot: the checkpoint is damaged.
        StorageError: the storage cannot be read.
    """
    forms = typing.get_args(Format)
    if form not in forms:
        raise errors.InputError(f"form is {form!r}; allowed: {', '.join(forms)}")
    place = locate(f"{path.rstrip('/')}/{job}" if job else path)
    state = open_state(place.storage, place.checkpoint(None if step < 0 else step), rank)
    export(state, typing.cast("Format", form), out)
    return state.manifest
