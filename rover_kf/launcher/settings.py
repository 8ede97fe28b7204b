# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What rover-run is told by its environment, read once at its start."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

from rover_kf.api import names


@dataclasses.dataclass(frozen=True, slots=True)
class LauncherSettings:
    """Where the shared volume is, and the environment that training processes inherit."""

    home: pathlib.Path | None
    """None: not in a pod of ours; torchrun itself is used."""
    inherited: dict[str, str]


def read(environment: Mapping[str, str]) -> LauncherSettings:
    """Read the settings; sets OMP_NUM_THREADS to 1 if unset, as torchrun does."""
    home = environment.get(names.ENV_HOME, "")
    # Libraries read it when they are loaded, so it must be there before torch is.
    inherited = {"OMP_NUM_THREADS": "1", **environment}
    return LauncherSettings(home=pathlib.Path(home) if home else None, inherited=inherited)
