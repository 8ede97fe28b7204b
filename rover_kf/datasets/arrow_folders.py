# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Files below an address that pyarrow knows: disks, S3, Google Cloud Storage, HDFS.

pyarrow is the user's: it is imported when a data set is made, not before.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from rover_kf import errors


class ArrowListing(NamedTuple):
    """What was found."""

    filesystem: Any
    """pyarrow's."""
    root: str
    """The folder, as that file system names it."""
    files: list[tuple[str, int]]
    """Name below the root, and bytes; sorted."""


def import_pyarrow() -> Any:
    """The module pyarrow.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module("pyarrow")
    except ImportError as cause:
        raise errors.InputError(
            "Parquet and Arrow files, and those of object stores, are read with pyarrow, which is "
            "not installed here: pip install 'rover-kf[data]', or pyarrow in the training image"
        ) from cause


def list_below(source: str, endings: Sequence[str]) -> ArrowListing:
    """Files of a folder and of those below it; a file's own, whatever it ends with.

    Args:
        source: a path or an address.
        endings: of names in folders; none: all. Names that begin with a dot or ``_`` are left out.

    Raises:
        InputError: it cannot be looked at, or has no files.
    """
    failures = (import_pyarrow().ArrowException, OSError)
    fs = importlib.import_module("pyarrow.fs")
    try:
        system, path = (
            fs.FileSystem.from_uri(source) if "://" in source else (fs.LocalFileSystem(), source)
        )
        about = system.get_file_info([path])[0]
        if about.type == fs.FileType.File:
            root = path[: -len(about.base_name)].rstrip("/")
            return ArrowListing(system, root, [(about.base_name, about.size)])
        listed = system.get_file_info(fs.FileSelector(path, recursive=True))
    except failures as cause:
        raise errors.InputError(
            f"{source} cannot be looked at: {cause}; is the volume with the data mounted there, "
            "and is its address one that pyarrow knows?"
        ) from cause
    root = path.rstrip("/")
    known = sorted(
        (each.path[len(root) + 1 :], each.size)
        for each in listed
        if each.type == fs.FileType.File and each.path.endswith(tuple(endings) or "")
    )
    kept = [
        (name, size)
        for name, size in known
        if not any(part.startswith((".", "_")) for part in name.split("/"))
    ]
    if not kept:
        of = f" that end with {' or '.join(endings)}" if endings else ""
        raise errors.InputError(
            f"{source} has no files{of}; is the volume with the data mounted there?"
        )
    return ArrowListing(system, root, kept)
