# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which Kubernetes the cluster can be; pure.

ROVER_KF_TEST_KUBERNETES names a minor version; without it the cluster is of the newest one here.
The oldest one here is the oldest one that the project supports: `make compat` runs on it.

All run by the same flags, manifests and configuration. What 1.29 does otherwise, and why nothing
here asks for its version:

- Its kubelet does not know `failCgroupV1` and `podLogsDir` yet. It says so in its log, decodes
  leniently, runs on control groups of version 1 anyway and writes pods' logs below /var/log/pods,
  which each node has for itself.
- Native sidecars and the webhook's match conditions are beta there and on by default.
"""

from __future__ import annotations

import dataclasses

from testcluster.errors import ClusterError


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """A version of Kubernetes that the cluster can be compiled from."""

    version: str
    """Its tag: v1.34.4."""
    module: str
    """Folder below tests/cluster/go that requires it."""

    @property
    def minor(self) -> str:
        """Its minor version: 1.34."""
        return self.version.removeprefix("v").rpartition(".")[0]


RELEASES = (Release("v1.34.4", "kubernetes"), Release("v1.29.15", "kubernetes-1.29"))
"""Newest first; README's table of versions says the same."""


def find(minor: str = "") -> Release:
    """The release of a minor version; empty: the newest.

    Raises:
        ClusterError: there is no Go module for it.
    """
    for release in RELEASES:
        if minor in ("", release.minor):
            return release
    allowed = ", ".join(release.minor for release in RELEASES)
    raise ClusterError(
        f"ROVER_KF_TEST_KUBERNETES is {minor!r}: the cluster can be compiled of {allowed}"
    )
