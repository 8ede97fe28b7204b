# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An authority that issues certificates, and Secrets as cert-manager writes them."""

from __future__ import annotations

import datetime as dt
import time

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = 86400.0


class Authority:
    """One with a key of its own.

    Args:
        name: of it.
    """

    def __init__(self, name: str = "an authority") -> None:
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        begun = time.time() - 500 * _DAY
        made = _builder(self._name, self._name, self._key, begun, begun + 1000 * _DAY)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.pem = _pem(made.sign(self._key, hashes.SHA256()))

    def secret(self, host: str, *, begins: float = -_DAY, ends: float = _DAY) -> dict[str, str]:
        """A new key and a certificate of it, and this authority's.

        Args:
            host: that it names.
            begins: seconds from now.
            ends: seconds from now.
        """
        key, now = ec.generate_private_key(ec.SECP256R1()), time.time()
        made = _builder(x509.Name([]), self._name, key, now + begins, now + ends)
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        signed = made.add_extension(names, critical=True).sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return {"tls.crt": _pem(signed), "tls.key": private.decode(), "ca.crt": self.pem}


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: float,
    ends: float,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime.fromtimestamp(begins, tz=dt.timezone.utc))
        .not_valid_after(dt.datetime.fromtimestamp(ends, tz=dt.timezone.utc))
    )


def _pem(made: x509.Certificate) -> str:
    return made.public_bytes(serialization.Encoding.PEM).decode()
