# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What people and pipelines call: submit, watch, scale, report; over any cluster."""

from __future__ import annotations

from rover_kf.client.progress import Progress
from rover_kf.client.rover import RoverClient

__all__ = ["Progress", "RoverClient"]
