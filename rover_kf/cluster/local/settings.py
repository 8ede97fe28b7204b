# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the embedded cluster takes from its surroundings, and its times; the only such place."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shlex
import sys
import tempfile
import zlib

from rover_kf import errors
from rover_kf.api import names

_KEPT = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_SHARED_MEMORY = pathlib.Path("/dev/shm")  # noqa: S108 - the place for memory-backed volumes
_LONGEST_SOCKET = f"rkf-00000000-99/{names.SOCKET}"
"""Of a volume that ``volumes.lay_out`` names."""
_SOCKET_BYTES = 107
"""That the path of a Unix socket has room for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Seconds; a kubelet's and an operator's delays, shortened for one machine."""

    tick: float = 0.03
    """Between two looks of a pod at its processes."""
    resync: float = 0.1
    """Between two looks of the operator at the stored objects."""
    first_restart: float = 0.2
    """Back-off before a container's first restart; doubles (a kubelet: 10)."""
    longest_restart: float = 10.0
    """Where the back-off stops growing (a kubelet: 300)."""
    grace: float = 30.0
    """Between SIGTERM and SIGKILL where the manifest does not say."""
    closing_grace: float = 10.0
    """The same when the whole embedded cluster is left."""
    after_failure: float = 5.0
    """What a pod has to end by itself once its job has failed (a cluster: as long as it likes)."""
    after_success: float = 30.0
    """The same once it has succeeded: a pod may still have to write what is its own."""


def base_environment(shims: pathlib.Path) -> dict[str, str]:
    """Environment that stands for a container image's own.

    Little of the caller's is passed on: what a job needs belongs into its manifest. ``python`` on
    PATH is the interpreter that runs this, and what is installed beside it is found.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    own, path = pathlib.Path(sys.executable).parent, os.environ.get("PATH", os.defpath)
    return {**kept, "PATH": f"{shims}:{own}:{path}", "GLOO_SOCKET_IFNAME": "lo"}


def write_shims(folder: pathlib.Path) -> pathlib.Path:
    """Put ``python`` and ``python3`` that start this interpreter below a folder.

    Scripts, not links: a virtual environment is found by the path its interpreter is started by.
    """
    place = folder / f"{zlib.crc32(sys.executable.encode()):08x}"
    place.mkdir(parents=True, exist_ok=True)
    text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n'
    for name in ("python", "python3"):
        aside = place / f".{name}.{os.getpid()}"
        aside.write_text(text)
        aside.chmod(0o755)
        aside.replace(place / name)
    return place


def memory_folder(fallback: pathlib.Path) -> pathlib.Path:
    """Return where memory-backed volumes go: shared memory if it can be written, else the fallback.

    Where a Unix socket's path has no room behind that, they are with other temporary files.

    Raises:
        ClusterUnavailable: there is no such place.
    """
    temporary = pathlib.Path(tempfile.gettempdir())
    if os.access(_SHARED_MEMORY, os.W_OK):
        return _SHARED_MEMORY
    for folder in (fallback, temporary):
        if len(os.fsencode(folder / _LONGEST_SOCKET)) <= _SOCKET_BYTES:
            return folder
    raise errors.ClusterUnavailable(
        f"{_SHARED_MEMORY} cannot be written, and the paths {fallback} and {temporary} are too "
        "long for a Unix socket in them; name a state folder with a shorter one (ROVER_KF_STATE)"
    )
