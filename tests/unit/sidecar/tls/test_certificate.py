# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A mounted certificate is used if other pods would take it, and else said to be what it is."""

from __future__ import annotations

import pytest

from rover_kf import errors
from rover_kf.sidecar.tls import certificate
from rover_kf.system import tls
from tests.support.tls.authority import Authority
from tests.support.tls.mounted_secret import MountedSecret

NAME = tls.server_name("team")
OURS, OTHERS = Authority("ours"), Authority("others")
DAY = 86400.0


@pytest.fixture
def read(tmp_path):
    """What a sidecar of the namespace makes of a Secret's content."""

    def made(content):
        secret = MountedSecret(tmp_path / "tls", content)
        return certificate.load(certificate.read_files(secret.folder), secret.folder, "team")

    return made


def test_a_certificate_that_fits_is_read(read):
    """With its authority and its end; text of it shows no key."""
    content = OURS.secret(NAME, ends=7 * DAY)
    found = read(content)
    assert found.authorities == (OURS.pem.strip(),)
    assert 6.9 * DAY < found.not_after - found.not_before - DAY < 7.1 * DAY
    assert not found.expires_soon(found.not_after - DAY)
    assert found.expires_soon(found.not_after - DAY / 2)
    assert "KEY" not in repr(found)


def test_authorities_of_a_configmap_count_as_well(read):
    """Not every issuer gives its own."""
    content = OURS.secret(NAME)
    content["more-ca.crt"] = "# a bundle\n" + OTHERS.pem + content.pop("ca.crt")
    assert read(content).authorities == (OTHERS.pem.strip(), OURS.pem.strip())


def test_an_authority_need_not_be_a_root(read):
    """What is mounted is trusted, whoever has signed it."""
    leaf = OURS.secret(NAME)
    assert read(leaf | {"ca.crt": leaf["tls.crt"]}).authorities == (leaf["tls.crt"].strip(),)


WRONG = {
    "no certificate": (lambda: {"tls.key": "k", "ca.crt": OURS.pem}, r"no tls\.crt in .*/tls"),
    "no key": (lambda: {**OURS.secret(NAME), "tls.key": ""}, r"no tls\.key .*kubernetes\.io/tls"),
    "no authority": (
        lambda: {**OURS.secret(NAME), "ca.crt": ""},
        r"no certificate of an authority .*tls\.authorities",
    ),
    "no PEM": (lambda: {**OURS.secret(NAME), "tls.crt": "x"}, "are no pair"),
    "another key": (
        lambda: {**OURS.secret(NAME), "tls.key": OURS.secret(NAME)["tls.key"]},
        "are no pair",
    ),
    "a locked key": (
        lambda: {
            **OURS.secret(NAME),
            "tls.key": "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n"
            "-----END ENCRYPTED PRIVATE KEY-----",
        },
        "are no pair",
    ),
    "another authority": (
        lambda: {**OURS.secret(NAME), "ca.crt": OTHERS.pem},
        "unable to get local issuer",
    ),
    "a broken authority": (
        lambda: {
            **OURS.secret(NAME),
            "ca.crt": "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
        },
        "TLS cannot use it",
    ),
    "another namespace": (
        lambda: OURS.secret(tls.server_name("others")),
        r"not valid for 'rover-kf\.team\.svc'.*has to name rover-kf\.team\.svc",
    ),
    "over": (lambda: OURS.secret(NAME, ends=-60.0), "certificate has expired"),
    "not begun": (lambda: OURS.secret(NAME, begins=3600.0), "not yet valid"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_said(read, what):
    """With the file's name and what it should be."""
    content, told = WRONG[what]
    with pytest.raises(errors.InputError, match=told):
        read(content())


def test_what_is_not_mounted_or_cannot_be_read_is_said(tmp_path):
    """By the folder's name."""
    with pytest.raises(errors.InputError, match=r"no tls\.crt in .*none"):
        certificate.load(certificate.read_files(tmp_path / "none"), tmp_path / "none", "team")
    (tmp_path / "tls.crt").mkdir()
    with pytest.raises(errors.InputError, match="cannot be read"):
        certificate.read_files(tmp_path)
