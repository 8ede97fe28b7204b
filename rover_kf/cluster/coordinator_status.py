# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a job's coordinator knows, as whoever looks at the job asks for it."""

from __future__ import annotations

from rover_kf.api import codec, names
from rover_kf.api.jobs import JobKey, Pod
from rover_kf.api.status import CoordinatorStatus
from rover_kf.cluster.protocol import Cluster


def fetch(
    cluster: Cluster, key: JobKey, *, after: int = 0, pod: Pod | None = None
) -> CoordinatorStatus:
    """Return the status of a job's coordinator, or of that of ``pod``, a world of its own.

    Its Events have a sequence above ``after``; names.NO_EVENTS: it has none of them.

    Raises:
        ClusterUnavailable: it does not answer (not started yet, ended, being replaced).
    """
    path = f"{names.PATH_STATUS}?after={after}"
    return codec.loads(CoordinatorStatus, cluster.call_coordinator(key, "GET", path, pod=pod))
