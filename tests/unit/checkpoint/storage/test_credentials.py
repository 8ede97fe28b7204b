# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which credentials a mounted Secret gives at this moment."""

from __future__ import annotations

import pathlib

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.checkpoint.storage import credentials
from tests.support.tls.mounted_secret import MountedSecret

URL = "s3://bucket/runs"
FIRST = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"}
OTHERS = {"AWS_REGION": "eu", "AWS_ALLOW_HTTP": "true", "HTTPS_PROXY": "http://x", "note": "hello"}


def _at(secret: MountedSecret) -> dict[str, str]:
    return {names.ENV_KEY_HOME: str(secret.folder)}


def test_credentials_alone_are_read_and_are_those_of_now(tmp_path):
    """Not what else a Secret has, of which the environment tells; what is gone from it is gone."""
    secret = MountedSecret(tmp_path / "secret", FIRST | OTHERS)
    assert credentials.read_mounted(URL, _at(secret)) == FIRST
    secret.change({"AWS_ACCESS_KEY_ID": "d", "AWS_SECRET_ACCESS_KEY": " e \r\n"} | OTHERS)
    assert credentials.read_mounted(URL, _at(secret)) == {
        "AWS_ACCESS_KEY_ID": "d",
        "AWS_SECRET_ACCESS_KEY": "e",
    }
    assert credentials.read_mounted("gs://bucket", _at(secret)) == {}
    secret.change({})
    assert credentials.read_mounted(URL, _at(secret)) == {}


def test_without_a_mounted_secret_the_environment_is_left_alone(tmp_path):
    """No folder is named, or it is not there."""
    assert credentials.read_mounted(URL, {}) == {}
    environment = dict(FIRST)
    credentials.drop_shadowed_variables(environment)
    assert environment == FIRST
    assert credentials.read_mounted(URL, {names.ENV_KEY_HOME: str(tmp_path / "none")}) == {}


@pytest.mark.parametrize("gone", [(), ("AWS_SESSION_TOKEN",)])
def test_variables_in_whose_place_files_are_are_forgotten(tmp_path, gone):
    """They would live on when the Secret has them no more; all others stay."""
    kept = {name: value for name, value in FIRST.items() if name not in gone}
    secret = MountedSecret(tmp_path / "secret", kept | OTHERS)
    environment = {**FIRST, **OTHERS, **_at(secret), "AZURE_STORAGE_ACCOUNT_KEY": "of the pod"}
    credentials.drop_shadowed_variables(environment)
    assert environment == {**OTHERS, **_at(secret), "AZURE_STORAGE_ACCOUNT_KEY": "of the pod"}


def test_no_key_of_one_secret_comes_with_one_of_the_next(tmp_path, monkeypatch):
    """The files are exchanged after the first was read: both are of the new ones."""
    secret = MountedSecret(tmp_path / "secret", FIRST)
    reads, plain = [], pathlib.Path.read_bytes

    def read_bytes(path: pathlib.Path) -> bytes:
        found = plain(path)
        if not reads:
            secret.change({name: value * 2 for name, value in FIRST.items()})
        reads.append(path.name)
        return found

    monkeypatch.setattr(pathlib.Path, "read_bytes", read_bytes)
    found = credentials.read_mounted(URL, _at(secret))
    assert found == {name: value * 2 for name, value in FIRST.items()}
    assert len(reads) > len(FIRST)


def test_a_secret_that_cannot_be_read_is_a_refusal(tmp_path):
    """With the folder's name; the environment stays as it is."""
    secret = MountedSecret(tmp_path / "secret", {})
    (secret.folder.resolve() / "..data" / "AWS_ACCESS_KEY_ID").mkdir()
    with pytest.raises(errors.StorageError, match=f"{secret.folder} cannot be read"):
        credentials.read_mounted(URL, _at(secret))
    environment = FIRST | _at(secret)
    credentials.drop_shadowed_variables(environment)
    assert environment == FIRST | _at(secret)
