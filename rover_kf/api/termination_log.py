# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A container's termination log, which outlives its pod's processes.

A controller that was away at a job's end reads there the launcher's verdict and the coordinator's
last status: Kubernetes keeps the log with the exit code.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.status import CoordinatorStatus, read_status

_log = logging.getLogger(__name__)

DEFAULT_PATH = pathlib.Path("/dev/termination-log")
"""Where the kubelet looks, unless the user's container says something else."""
MAX_BYTES = 4096
"""That Kubernetes keeps of a container; of all of a pod 12 KiB."""
_LONGEST_VERDICT = 200
"""Characters, which may take twelve bytes each; the launcher leaves more of it."""
_MOST_OF_EVENTS = MAX_BYTES * 3 // 4
"""Bytes up to which Events are added; what is left is for windows."""


def pack(status: CoordinatorStatus) -> str:
    """Return as much of the status as Kubernetes keeps.

    All figures, the data sets if they fit, and as many of the newest Events and windows as do.
    """
    bare = dataclasses.replace(
        status,
        verdict=status.verdict[:_LONGEST_VERDICT],
        data=(),
        windows=(),
        # What was told while the job ran, and is of no use after it.
        preflight=None,
        events=(),
        hangs=(),
        oom_kills=(),
        stragglers=(),
        faulty_nodes=(),
        pod_cpus=(),
    )
    with_data = dataclasses.replace(bare, data=status.data)
    told = with_data if _fits(with_data) else bare
    told = _with_newest(told, "events", status.events, _MOST_OF_EVENTS)
    told = _with_newest(told, "windows", status.windows)
    return codec.dumps(told).decode()


def unpack(text: str, source: str) -> CoordinatorStatus | None:
    """Read the status in a termination log; None if there is none, or it is unreadable."""
    if not text:
        return None
    try:
        return read_status(text.encode())
    except errors.ProtocolError as error:
        _log.warning("%s left a last status that cannot be read: %s", source, error)
        return None


def _with_newest(
    status: CoordinatorStatus,
    field: str,
    values: Sequence[Any],
    max_bytes: int = MAX_BYTES,
) -> CoordinatorStatus:
    """With as many of the last values as fit."""
    for begin in reversed(range(len(values))):
        newest: dict[str, Any] = {field: tuple(values[begin:])}
        more = dataclasses.replace(status, **newest)
        if not _fits(more, max_bytes):
            break
        status = more
    return status


def _fits(status: CoordinatorStatus, max_bytes: int = MAX_BYTES) -> bool:
    return len(codec.dumps(status)) <= max_bytes


def write(mount_path: pathlib.Path, text: str, log_path: pathlib.Path = DEFAULT_PATH) -> bool:
    """Write a text, cut after MAX_BYTES; return whether it is there now.

    What the user's program has written there stays. At another mount path than a pod's the log is
    not this container's. A missing log is not created.
    """
    if mount_path != pathlib.Path(names.HOME):
        return False
    try:
        log = os.open(log_path, os.O_WRONLY)
    except OSError:
        return False
    try:
        if os.fstat(log).st_size:
            return False
        whole = text.encode(errors="replace")[:MAX_BYTES].decode(errors="ignore")
        os.write(log, whole.encode())
    except OSError:
        return False
    finally:
        os.close(log)
    return True
