# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The 8 bytes that tell the pod's trainers at which step to save and leave."""

from __future__ import annotations

import os
import pathlib

from rover_kf.api import names


def write(shared_dir: pathlib.Path, step: int) -> None:
    """Set the drain step; 0 lets trainers go on. In place: trainers may have it mapped."""
    descriptor = os.open(shared_dir / names.DRAIN_FILE, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.pwrite(descriptor, step.to_bytes(8, "little"), 0)
    finally:
        os.close(descriptor)
