# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One HTTP request to the sidecar of a pod that is reached by its address.

A tenant's pod may answer anything: the bytes and the seconds of the whole exchange are bounded.
"""

from __future__ import annotations

import functools
import http.client
import io
import pathlib
import socket
import ssl
import time
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey, Pod
from rover_kf.system import tls

ANSWER_SECONDS = 10.0
"""To connect, to send the request, and for the whole answer: each."""
MAX_ANSWER_BYTES = 2 << 20
"""A status of a thousand ranks takes a quarter of it."""


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
    connection = _Connection(pod.address, names.PORT, timeout=ANSWER_SECONDS)
    if pod.uses_tls:
        context = _context(key, authorities, needed=token is not None)
        connection = _Encrypted(pod.address, context, tls.server_name(key.namespace))
    try:
        connection.request(method, path, body=body, headers=headers)
        reply = connection.getresponse()
        found = reply.read(MAX_ANSWER_BYTES + 1)
    except ssl.SSLCertVerificationError as cause:
        refused = f"the certificate of {key}'s coordinator is refused ({cause.verify_message})"
        message = f"{refused}: see rover-kf doctor, docs/security.md"
        raise errors.ClusterUnavailable(message) from cause
    except (OSError, http.client.HTTPException) as cause:
        message = f"the coordinator of {key} ({pod.name}) does not answer: {cause!r}"
        raise errors.ClusterUnavailable(message) from cause
    finally:
        connection.close()
    if len(found) > MAX_ANSWER_BYTES:
        message = f"the coordinator of {key} answers with more than {MAX_ANSWER_BYTES} bytes"
        raise errors.ClusterUnavailable(message)
    if reply.status != http.HTTPStatus.OK:
        said = found.decode(errors="replace")[:500]
        message = f"the coordinator of {key} refused {method} {path}: {reply.status} {said}"
        raise errors.ClusterUnavailable(message)
    return found


class _DeadlineReader(io.RawIOBase):
    """A socket's bytes until a time of the monotonic clock.

    A socket's own timeout is for each of its reads: a byte from time to time would never end.
    """

    def __init__(self, sock: socket.socket, raw: io.RawIOBase, deadline: float) -> None:
        self._sock, self._raw, self._deadline = sock, raw, deadline

    def readable(self) -> bool:
        """See RawIOBase."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """See RawIOBase."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the answer has not ended within {ANSWER_SECONDS:g} s")
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        """See RawIOBase; the socket is open for as long as its reader is."""
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer that has to end in time."""

    def __init__(self, sock: socket.socket, *rest: Any, **options: Any) -> None:
        super().__init__(sock, *rest, **options)
        deadline = time.monotonic() + ANSWER_SECONDS
        self.fp = io.BufferedReader(_DeadlineReader(sock, self.fp.detach(), deadline))


class _Connection(http.client.HTTPConnection):
    response_class = _Response


class _Encrypted(_Connection):
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
