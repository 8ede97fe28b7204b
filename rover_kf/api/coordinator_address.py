# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where pods are, told by who knows better than a name server."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """Body of PATH_COORDINATOR."""

    address: str
    """IP address of the job's first pod."""


@dataclasses.dataclass(frozen=True, slots=True)
class PodAddresses:
    """Body of PATH_PODS: pods that a round waits for, and that run."""

    addresses: dict[str, str]
    """IP address by the pod's name."""
