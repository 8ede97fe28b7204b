# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's CPU limit in a manifest, in thousandths of a core, and what it was before; pure."""

from __future__ import annotations

from rover_kf.api import names
from rover_kf.injection import quantities
from rover_kf.injection.limits.raised_limit import ResourceLimit

CPU = ResourceLimit(
    "cpu", names.CPU_RAISED_ANNOTATION, quantities.parse_millicores, quantities.format_millicores
)
