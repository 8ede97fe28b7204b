# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Certificates and kubeconfigs of one cluster, made anew for each: that takes milliseconds."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import ipaddress
import json
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from testcluster import network

_PEM = serialization.Encoding.PEM


@dataclasses.dataclass(frozen=True, slots=True)
class Authority:
    """The cluster's certificate authority and the folder with everything it has signed."""

    directory: pathlib.Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, directory: pathlib.Path) -> Authority:
        """Make the authority, and the key of service-account tokens (RSA, as kubeadm's is)."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rover-kf-test")])
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        (directory / "ca.crt").write_bytes(certificate.public_bytes(_PEM))
        tokens = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        _write_key(directory / "sa.key", tokens)
        return cls(directory, key, certificate)

    def issue(
        self, name: str, common: str, group: str = "", names: tuple[str, ...] = ("localhost",)
    ) -> None:
        """Write ``<name>.crt`` and ``<name>.key``, good for serving and for authenticating."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common))
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _builder(x509.Name(attributes), self.certificate.subject, key.public_key())
            .add_extension(
                x509.SubjectAlternativeName([_general(item) for item in names]), critical=False
            )
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        (self.directory / f"{name}.crt").write_bytes(certificate.public_bytes(_PEM))
        _write_key(self.directory / f"{name}.key", key)

    def kubeconfig(self, name: str, path: pathlib.Path) -> pathlib.Path:
        """Write a kubeconfig that authenticates with the certificate of that name."""
        data = {
            part: base64.b64encode((self.directory / part).read_bytes()).decode()
            for part in ("ca.crt", f"{name}.crt", f"{name}.key")
        }
        cluster = {
            "server": f"https://{network.address(0)}:6443",
            "certificate-authority-data": data["ca.crt"],
        }
        user = {
            "client-certificate-data": data[f"{name}.crt"],
            "client-key-data": data[f"{name}.key"],
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "rk",
            "clusters": [{"name": "rk", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "rk", "context": {"cluster": "rk", "user": name}}],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(document))
        return path


def create(run_directory: pathlib.Path, nodes: int) -> None:
    """All that control plane and nodes need, below ``pki/``; kubeconfigs beside it."""
    authority = Authority.create(run_directory / "pki")
    service = ("kubernetes.default.svc", "kubernetes.default", "kubernetes", "localhost")
    authority.issue(
        "api",
        "kube-apiserver",
        names=(*service, "127.0.0.1", network.address(0), network.API_SERVICE),
    )
    authority.issue("admin", "admin", "system:masters")
    authority.issue("front", "front-proxy-client")
    for name in ("controller-manager", "scheduler", "proxy"):
        authority.issue(name, f"system:kube-{name}")
    for index in range(1, nodes + 1):
        node = network.namespace(index)
        authority.issue(node, f"system:node:{node}", "system:nodes", (node, network.address(index)))
        authority.kubeconfig(node, run_directory / f"{node}.kubeconfig")
    for name in ("admin", "controller-manager", "scheduler", "proxy"):
        authority.kubeconfig(name, run_directory / f"{name}.kubeconfig")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=30))
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_key(path: pathlib.Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    plain = serialization.NoEncryption()
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain))
