# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One HTTP request to the sidecar of a pod that is reached by its address."""

from __future__ import annotations

import functools
import http.client
import pathlib
import ssl

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey, Pod
from rover_kf.system import tls

ANSWER_SECONDS = 10.0


def send(
    key: JobKey,
    pod: Pod,
    method: str,
    path: str,
    body: bytes | None,
    *,
    token: str | None,
    authorities: pathlib.Path | None = None,
) -> bytes:
    """Send a request and return the reply's body.

    A token is sent only to a sidecar whose certificate one of the authorities has signed.
    A request without a token is open to all, and is sent to any.

    Raises:
        ClusterUnavailable: it cannot be reached, or refused.
    """
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    # Each job is asked a few times a minute: a pool of connections would keep none of use.
    connection = http.client.HTTPConnection(pod.address, names.PORT, timeout=ANSWER_SECONDS)
    if pod.uses_tls:
        context = _context(key, authorities, needed=token is not None)
        connection = _Encrypted(pod.address, context, tls.server_name(key.namespace))
    try:
        connection.request(method, path, body=body, headers=headers)
        reply = connection.getresponse()
        found = reply.read()
    except ssl.SSLCertVerificationError as cause:
        refused = f"the certificate of {key}'s coordinator is refused ({cause.verify_message})"
        message = f"{refused}: see rover-kf doctor, docs/security.md"
        raise errors.ClusterUnavailable(message) from cause
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


class _Encrypted(http.client.HTTPConnection):
    """TLS to an address whose certificate has to bear another name."""

    def __init__(self, address: str, context: ssl.SSLContext, name: str) -> None:
        super().__init__(address, names.PORT, timeout=ANSWER_SECONDS)
        self._context, self._name = context, name

    def connect(self) -> None:
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=self._name)


def _context(key: JobKey, authorities: pathlib.Path | None, *, needed: bool) -> ssl.SSLContext:
    try:
        if authorities is not None:
            return _cached_context(authorities.read_text())
    except FileNotFoundError:
        pass  # told below, where it is needed
    except (OSError, ssl.SSLError, ValueError) as cause:
        message = f"{authorities} holds no certificates of authorities: {cause}"
        raise errors.ClusterUnavailable(message) from cause
    if needed:
        raise errors.ClusterUnavailable(
            f"the sidecars of {key} encrypt, and {authorities} is not there: tell the controller "
            "whose certificates to take (docs/security.md)"
        )
    return tls.unverified_context()


@functools.lru_cache(maxsize=4)
def _cached_context(authorities: str) -> ssl.SSLContext:
    return tls.verifying_context(authorities)
