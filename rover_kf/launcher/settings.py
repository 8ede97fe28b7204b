# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What rover-run is told by its environment, read once at its start."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api import names

_DEFAULT_GRACE = "30"
"""Seconds, as Kubernetes has it; what injection leaves unwritten."""


@dataclasses.dataclass(frozen=True, slots=True)
class LauncherSettings:
    """Where the shared volume is, and the environment that training processes inherit."""

    shared_dir: pathlib.Path | None
    """None: not in a pod of ours; torchrun itself is used."""
    inherited: dict[str, str]
    grace_seconds: float = float(_DEFAULT_GRACE)
    """Between SIGTERM and SIGKILL of this pod."""
    max_memory: int = 0
    """Bytes that the container's memory limit may be raised to; 0: it is not raised."""
    serves: bool = False
    """Its process is a TensorFlow server, which another pod's program drives."""


def read(environment: Mapping[str, str]) -> LauncherSettings:
    """Read the settings; sets OMP_NUM_THREADS to 1 if unset, as torchrun does.

    Raises:
        InputError: the grace is no number of seconds, the memory none of bytes, or the preload is
            neither on nor off.
    """
    preload = environment.get(names.ENV_PRELOAD, "on")
    if preload not in ("on", "off"):
        raise errors.InputError(f"{names.ENV_PRELOAD} is {preload!r}; on or off is needed")
    home = environment.get(names.ENV_HOME, "")
    # Libraries read it when they are loaded, so it must be there before torch is.
    inherited = {"OMP_NUM_THREADS": "1", **environment}
    grace = _number(environment, names.ENV_GRACE, _DEFAULT_GRACE, "seconds")
    memory = int(_number(environment, names.ENV_MEMORY_MAX, "0", "bytes"))
    serves = environment.get(names.ENV_SERVES) == "1"
    return LauncherSettings(pathlib.Path(home) if home else None, inherited, grace, memory, serves)


def _number(environment: Mapping[str, str], name: str, default: str, unit: str) -> float:
    stated = environment.get(name, default)
    try:
        return float(stated)
    except ValueError as cause:
        raise errors.InputError(f"{name} is {stated!r}; a number of {unit} is needed") from cause
