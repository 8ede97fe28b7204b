# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where the coordinator is, told by itself."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Whereabouts:
    """Body of PATH_COORDINATOR."""

    address: str
    """IP address of the job's first pod."""
