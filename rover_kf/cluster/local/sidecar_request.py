# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One HTTP request to the sidecar of an embedded pod."""

from __future__ import annotations

import http.client

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.jobs import JobKey, Pod

_ANSWER_SECONDS = 10.0


def send(
    key: JobKey, pod: Pod, method: str, path: str, body: object | None = None, *, token: str
) -> bytes:
    """Send it and return the reply's body.

    Args:
        key: the pod's job.
        pod: the one with the coordinator.
        method: of HTTP.
        path: with its query.
        body: encoded by api.codec.
        token: that the job's pods share.

    Raises:
        ClusterUnavailable: it cannot be reached, or refused.
    """
    connection = http.client.HTTPConnection(pod.address, names.PORT, timeout=_ANSWER_SECONDS)
    try:
        data = None if body is None else codec.dumps(body)
        connection.request(method, path, data, {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        answer = response.read()
    except (OSError, http.client.HTTPException) as cause:
        message = f"the coordinator of {key} ({pod.name}) does not answer: {cause}"
        raise errors.ClusterUnavailable(message) from cause
    finally:
        connection.close()
    if response.status >= 400:  # noqa: PLR2004 - HTTP's own border
        raise errors.ClusterUnavailable(
            f"the coordinator of {key} refused {method} {path}: "
            f"{response.status} {answer.decode(errors='replace')}"
        )
    return answer
