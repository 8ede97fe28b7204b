# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""On which terms a step launches a job: how long it waits, what follows when it is stopped."""

from __future__ import annotations

import dataclasses

from rover_kf import errors

ON_STOP = ("delete", "suspend", "keep")
ON_LEASE_EXPIRED = ("suspend", "delete", "keep")
DAY = 86400.0


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What the step and the controller hold to.

    Raises:
        InputError: a value is not allowed.
    """

    timeout_seconds: float = DAY
    """How long the job is waited for; then it is stopped as ``on_stop`` says."""
    start_seconds: float = 120.0
    """How long no operator may act on it before the step fails."""
    on_stop: str = "delete"
    """What becomes of the job when the step is stopped: delete, suspend or keep."""
    lease_seconds: float = 600.0
    """How long the step may be silent before ``on_lease_expired`` follows; 0: for ever."""
    on_lease_expired: str = "suspend"
    """What the controller does then: suspend, delete or keep."""

    def __post_init__(self) -> None:
        for name, allowed in (("on_stop", ON_STOP), ("on_lease_expired", ON_LEASE_EXPIRED)):
            if (value := getattr(self, name)) not in allowed:
                raise errors.InputError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")
        for name in ("timeout_seconds", "start_seconds"):
            if (seconds := getattr(self, name)) <= 0:
                raise errors.InputError(f"{name} is {seconds:g}; allowed: more than 0 seconds")
        if self.lease_seconds < 0:
            raise errors.InputError(f"lease_seconds is {self.lease_seconds:g}; allowed: 0 or more")
