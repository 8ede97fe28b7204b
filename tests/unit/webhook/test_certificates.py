# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The webhook's own certificates."""

from __future__ import annotations

import dataclasses
import datetime as dt
import socket
import ssl
import threading

import pytest

from rover_kf import errors
from rover_kf.webhook.certificates import LIFE, RENEW_BEFORE, Certificates, issue

HOSTS = ("rover-kf-webhook.rover-kf-system.svc", "localhost")
NOW = dt.datetime.now(tz=dt.timezone.utc).timestamp()


def handshake(certificates, home, authority, host):
    """A real TLS handshake; raises what the client's verification raises."""
    chain, key = home / "tls.crt", home / "tls.key"
    chain.write_bytes(certificates.certificate)
    key.write_bytes(certificates.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain, key)
    client = ssl.create_default_context(cadata=authority.decode())
    ours, theirs = socket.socketpair()

    def serve():
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(ours, server_hostname=host).close()
    finally:
        ours.close()
        thread.join()


def test_a_client_that_trusts_the_authority_connects(tmp_path):
    """TLS verifies the server by our authority for each of its names, and for no other."""
    made = issue(HOSTS, NOW)
    for host in HOSTS:
        handshake(made, tmp_path, made.authority, host)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(made, tmp_path, made.authority, "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(made, tmp_path, issue(HOSTS, NOW).authority, HOSTS[0])


def test_after_a_renewal_both_are_trusted(tmp_path):
    """The renewed bundle verifies the new server and one that still serves the old certificate."""
    old = issue(HOSTS, NOW)
    newer = issue(HOSTS, NOW).also_trusting(old)
    newest = issue(HOSTS, NOW).also_trusting(newer)
    handshake(newer, tmp_path, newer.authority, HOSTS[0])
    handshake(old, tmp_path, newer.authority, HOSTS[0])
    handshake(newer, tmp_path, newest.authority, HOSTS[0])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(old, tmp_path, newest.authority, HOSTS[0])


def test_they_are_renewed_in_time():
    """Usable until the margin before the end, and only for the names that they hold."""
    made = issue(HOSTS, NOW)
    margin = RENEW_BEFORE.total_seconds()
    assert made.expires == pytest.approx(NOW + LIFE.total_seconds(), abs=600)
    assert made.usable(HOSTS, NOW)
    assert made.usable(HOSTS[:1], made.expires - margin - 1)
    assert not made.usable(HOSTS, made.expires - margin + 1)
    assert not made.usable(("other.svc",), NOW)


def test_a_secret_holds_them():
    """to_data and from_data are inverse; a Secret that is cut short or not ours is refused."""
    made = issue(HOSTS, NOW)
    assert Certificates.from_data(made.to_data()) == made
    assert made.to_data().keys() == {"ca.crt", "tls.crt", "tls.key"}
    for broken in ({}, {**made.to_data(), "tls.key": b""}, {**made.to_data(), "ca.crt": b"x"}):
        with pytest.raises(errors.ProtocolError, match="certificates"):
            Certificates.from_data(broken)
    assert dataclasses.replace(made, key=b"") != made
