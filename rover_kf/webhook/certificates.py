# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A certificate authority of our own and a server certificate of it, for the webhook alone.

Kept together as the data of one Secret; nobody but the API server trusts it, through caBundle.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rover_kf import errors

LIFE = dt.timedelta(days=365)
RENEW_BEFORE = dt.timedelta(days=60)
_SKEW = dt.timedelta(minutes=5)


@dataclasses.dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts of one pair of authority and server."""

    authority: bytes
    certificate: bytes
    key: bytes

    @property
    def expires(self) -> float:
        """Unix seconds at which the server's certificate ends; the authority's ends with it."""
        found = x509.load_pem_x509_certificate(self.certificate)
        return found.not_valid_after_utc.timestamp()

    def usable(self, hosts: Sequence[str], now: float) -> bool:
        """Whether it names these hosts and is not about to expire."""
        found = x509.load_pem_x509_certificate(self.certificate)
        try:
            named = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return False
        known = set(named.get_values_for_type(x509.DNSName))
        return set(hosts) <= known and now < self.expires - RENEW_BEFORE.total_seconds()

    def also_trusting(self, older: Certificates) -> Certificates:
        """These, with the authority of those they replace behind their own."""
        first = x509.load_pem_x509_certificate(older.authority)
        previous = first.public_bytes(serialization.Encoding.PEM)
        return dataclasses.replace(self, authority=self.authority + previous)

    def to_data(self) -> dict[str, bytes]:
        """Keys and values of a Secret of type kubernetes.io/tls."""
        return {"ca.crt": self.authority, "tls.crt": self.certificate, "tls.key": self.key}

    @classmethod
    def from_data(cls, data: Mapping[str, bytes]) -> Certificates:
        """Read to_data() back; ProtocolError if a key is missing, or its value is no PEM."""
        try:
            found = cls(data["ca.crt"], data["tls.crt"], data["tls.key"])
            x509.load_pem_x509_certificate(found.authority)
            x509.load_pem_x509_certificate(found.certificate)
            serialization.load_pem_private_key(found.key, password=None)
        except (KeyError, ValueError) as cause:
            raise errors.ProtocolError(f"not a webhook's certificates: {cause!r}") from cause
        return found


def issue(hosts: Sequence[str], now: float) -> Certificates:
    """Make an authority and a server certificate of it for DNS names of the webhook."""
    start = dt.datetime.fromtimestamp(now, tz=dt.timezone.utc) - _SKEW
    end = start + LIFE
    authority_key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _name("rover-kf webhook authority")
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(authority_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
    server = (
        _builder(_name(hosts[0][:64]), authority_name, server_key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id),
            critical=False,
        )
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    # The authority's key is dropped here: it has signed all that it ever will.
    private = server_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem = serialization.Encoding.PEM
    return Certificates(authority.public_bytes(pem), server.public_bytes(pem), private)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    start: dt.datetime,
    end: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
