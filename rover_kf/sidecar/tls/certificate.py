# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A sidecar's certificate as it is mounted, tried out before it is used.

A handshake in memory shows whether another pod with the same files would accept it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import ssl
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api import names
from rover_kf.system import mounted_files, tls

_FILES = (
    names.TLS_CERTIFICATE,
    names.TLS_KEY,
    names.TLS_AUTHORITIES,
    names.TLS_MORE_AUTHORITIES,
)
_PEM_BLOCK = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VALIDITY = "notBefore", "notAfter"
_FLIGHTS = 3
"""Each end's turns in a handshake of TLS 1.3, and one to spare."""


@dataclasses.dataclass(frozen=True, slots=True)
class Certificate:
    """What one sidecar shows, and what it asks others for."""

    chain: bytes = dataclasses.field(repr=False)
    """PEM: the certificate and what leads to its authority."""
    key: bytes = dataclasses.field(repr=False)
    authorities: tuple[str, ...] = dataclasses.field(repr=False)
    """PEM of each."""
    not_before: float
    """Unix seconds."""
    not_after: float

    def expires_soon(self, now: float) -> bool:
        """Whether little is left of its life; cert-manager renews when a third is left."""
        return self.not_after - now < (self.not_after - self.not_before) / 10

    def server_context(self) -> ssl.SSLContext:
        """For who answers."""
        return _make_server_context(self.chain, self.key)


def load(contents: Mapping[str, bytes], folder: pathlib.PurePath, namespace: str) -> Certificate:
    """Read the certificate from the files of a folder.

    Raises:
        InputError: a part is missing, or another pod would not take it.
    """
    for name in (names.TLS_CERTIFICATE, names.TLS_KEY):
        if not contents.get(name):
            raise errors.InputError(
                f"no {name} in {folder}: the Secret of {names.PREFIX}tls.secret has to be of type "
                "kubernetes.io/tls"
            )
    authorities = [
        part
        for name in (names.TLS_AUTHORITIES, names.TLS_MORE_AUTHORITIES)
        for part in _PEM_BLOCK.findall(contents.get(name, b"").decode(errors="replace"))
    ]
    if not authorities:
        raise errors.InputError(
            f"no certificate of an authority in {folder}: the Secret of {names.PREFIX}tls.secret "
            f"needs {names.TLS_AUTHORITIES}, or {names.PREFIX}tls.authorities a ConfigMap with it"
        )
    chain, key = contents[names.TLS_CERTIFICATE], contents[names.TLS_KEY]
    authorities = list(dict.fromkeys(authorities))
    try:
        life = _verify_by_handshake(chain, key, "\n".join(authorities), namespace)
    except errors.InputError as refused:
        raise errors.InputError(
            f"other pods would refuse {folder / names.TLS_CERTIFICATE}: {refused}; it has to name "
            f"{tls.server_name(namespace)}, to be valid now, to fit {names.TLS_KEY}, and to be of "
            "an authority that is mounted there"
        ) from refused
    return Certificate(chain, key, tuple(authorities), *life)


def read_files(folder: pathlib.Path) -> dict[str, bytes]:
    """What is mounted now.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return mounted_files.read(folder, _FILES)
    except OSError as cause:
        raise errors.InputError(f"{folder} cannot be read: {cause}") from cause


def validation_error(certificate: Certificate, authorities: str, namespace: str) -> str:
    """Return why clients of these authorities (PEM) would refuse it; empty: they accept."""
    try:
        _verify_by_handshake(certificate.chain, certificate.key, authorities, namespace)
    except errors.InputError as refused:
        return str(refused)
    return ""


def _verify_by_handshake(
    chain: bytes, key: bytes, authorities: str, namespace: str
) -> tuple[float, float]:
    """Begin and end of a certificate that was shown to who trusts those authorities.

    Raises:
        InputError: it was not taken; says why.
    """
    try:
        server = _make_server_context(chain, key)
    except (ssl.SSLError, ValueError) as cause:
        message = f"{names.TLS_CERTIFICATE} and {names.TLS_KEY} are no pair ({cause})"
        raise errors.InputError(message) from cause
    try:
        shown = _try_handshake(
            tls.verifying_context(authorities), server, tls.server_name(namespace)
        )
    except ssl.SSLCertVerificationError as cause:
        raise errors.InputError(cause.verify_message) from cause
    except ssl.SSLError as cause:
        raise errors.InputError(f"TLS cannot use it ({cause})") from cause
    begins, ends = (ssl.cert_time_to_seconds(str(shown[name])) for name in _VALIDITY)
    return begins, ends


def _make_server_context(chain: bytes, key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # who comes again is verified again
    # The library takes a file alone; this one is in memory, and nobody else's.
    held = os.memfd_create("rover-tls")
    try:
        with open(held, "wb", closefd=False) as file:
            file.write(chain + b"\n" + key)
        # Without a password it would ask for one on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{held}", password="")
    finally:
        os.close(held)
    return context


def _try_handshake(
    client: ssl.SSLContext, server: ssl.SSLContext, name: str
) -> Mapping[str, object]:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(back, there, server_hostname=name)
    answering = server.wrap_bio(there, back, server_side=True)
    for _ in range(_FLIGHTS):
        for end in (asking, answering):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return asking.getpeercert() or {}
