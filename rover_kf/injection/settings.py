# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the place that injects adds to a job's own wishes; the controller reads it once."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class InjectionSettings:
    """Not the job owner's to choose."""

    sidecar_image: str
    """Image of init container and sidecar."""
    controller_account: str = ""
    """``namespace:name`` of the service account that may post to coordinators; empty: none."""
    image_pull_policy: str = "IfNotPresent"
