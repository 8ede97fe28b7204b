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
    """Its status.

    Args:
        cluster: where the job is.
        key: of the job.
        after: sequence that the Events are to be above; names.NO_EVENTS: none of them.
        pod: one that is a world of its own; the job's coordinator if not given.

    Raises:
        ClusterUnavailable: it does not answer (not started yet, ended, being replaced).
    """
    path = f"{names.PATH_STATUS}?after={after}"
    return codec.loads(CoordinatorStatus, cluster.call_coordinator(key, "GET", path, pod=pod))
