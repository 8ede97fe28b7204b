# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One HTTP request to the sidecar of a pod that is reached by its address."""

from __future__ import annotations

import http.client

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey, Pod

ANSWER_SECONDS = 10.0


def send(
    key: JobKey, pod: Pod, method: str, path: str, body: bytes | None, *, token: str | None
) -> bytes:
    """Send it and return the reply's body.

    Args:
        key: the pod's job.
        pod: the one that is asked.
        method: of HTTP.
        path: with its query.
        body: JSON, if any.
        token: that the sidecar takes; None: the request is open to all.

    Raises:
        ClusterUnavailable: it cannot be reached, or refused.
    """
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    # Each job is asked a few times a minute: a pool of connections would keep none of use.
    connection = http.client.HTTPConnection(pod.address, names.PORT, timeout=ANSWER_SECONDS)
    try:
        connection.request(method, path, body=body, headers=headers)
        reply = connection.getresponse()
        found = reply.read()
    except (OSError, http.client.HTTPException) as cause:
        message = f"the coordinator of {key} ({pod.name}) does not answer: {cause!r}"
        raise errors.ClusterUnavailable(message) from cause
    finally:
        connection.close()
    if reply.status != http.HTTPStatus.OK:
        said = found.decode(errors="replace")[:500]
        message = f"the coordinator of {key} refused {method} {path}: {reply.status} {said}"
        raise errors.ClusterUnavailable(message)
    return found
