# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A whole state as one safetensors file, which is also a snapshot of a world of one."""

from __future__ import annotations

import json
import mmap
import os
import pathlib

from rover_kf.checkpoint.format.snapshot import LENGTH_BYTES
from rover_kf.checkpoint_tools.consolidated_state import ConsolidatedState

_FORMAT = {"format": "pt"}
"""Libraries that share models want to know which framework's tensors they are."""


def write(state: ConsolidatedState, path: pathlib.Path) -> None:
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
        fill(state, descriptor)
        head = _add_label(state.assembly.header)
        os.pwrite(descriptor, head, 0)
    finally:
        os.close(descriptor)


def fill(state: ConsolidatedState, descriptor: int) -> None:
    """Make an empty open file the put-together snapshot; raises as write does."""
    # Room first: a full disk is an error here, and a signal in the midst of a mapping.
    os.posix_fallocate(descriptor, 0, state.assembly.length)
    with mmap.mmap(descriptor, state.assembly.length) as mapping, memoryview(mapping) as target:
        state.fill(target)


def _add_label(header: bytes) -> bytes:
    """The header with the label; as it is if there is no room for it."""
    room = len(header) - LENGTH_BYTES
    parsed = json.loads(header[LENGTH_BYTES:])
    parsed["__metadata__"] = {**_FORMAT, **parsed["__metadata__"]}
    text = json.dumps(parsed, separators=(",", ":")).encode()
    return header[:LENGTH_BYTES] + text.ljust(room) if len(text) <= room else header
