# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the API server makes of a job, asked without creating it."""

from __future__ import annotations

import json

from testcluster import jobs, waiting
from testcluster.commands import Kubectl
from testcluster.errors import ClusterError, CommandFailed

SECONDS = 120.0


def wait(cluster: Kubectl, *, injected: bool) -> None:
    """Wait until a labelled job is admitted, and injected if that is asked for.

    A Deployment is Available before the way to its webhook is open: a Service's rules follow later,
    and a connection to a pod that lost its node is kept until a call over it has failed.

    Raises:
        ClusterError: it is not in two minutes.
    """
    made = waiting.until(lambda: _is_admitted(cluster, injected=injected), seconds=SECONDS, every=1)
    if not made:
        wanted = "injected" if injected else "admitted"
        raise ClusterError(f"a labelled job was not {wanted} in {SECONDS:g} s")


def _is_admitted(cluster: Kubectl, *, injected: bool) -> bool:
    asked = ("create", "--dry-run=server", "--output=json", "-f", "-")
    try:
        answer = cluster.kubectl(*asked, text=json.dumps(jobs.digits("default")), timeout=60)
    except CommandFailed as refused:
        if "failed calling webhook" not in str(refused):
            raise
        return False
    return not injected or "rover-kf.io/injected" in json.loads(answer)["metadata"]["annotations"]
