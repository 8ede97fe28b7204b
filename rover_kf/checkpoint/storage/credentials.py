# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Credentials of an object store as the files of a mounted Secret.

A container's environment stays what it was at its start; the kubelet writes a mounted Secret anew
when it changes, all files at once. So what changes when keys are rotated is read from there, at
each use. What else a store needs (its endpoint, its region) is in the environment.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Mapping, MutableMapping

from rover_kf import errors
from rover_kf.api import names
from rover_kf.system import mounted_files

_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_")


_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""The first that is stated counts."""


def strip_whitespace(environment: MutableMapping[str, str]) -> None:
    """Take the space around values away.

    A Secret that was made of files (``--from-file``, ``echo … | base64``) has a newline after each,
    at which the client panics.

    Args:
        environment: of the process.
    """
    for name, value in list(environment.items()):
        if name.startswith(_PREFIXES) and value != value.strip():
            environment[name] = value.strip()


def s3_endpoint(environment: Mapping[str, str]) -> str:
    """The URL of the S3 server; empty: Amazon's.

    Raises:
        StorageError: it is no URL.
    """
    stated = next((name for name in _ENDPOINTS if environment.get(name)), None)
    if stated is None:
        return ""
    if not re.fullmatch(r"https?://\S+", environment[stated]):
        raise errors.StorageError(
            f"{stated} is no URL such as https://s3.example.org or http://minio.minio:9000; "
            "correct it where the credentials are given"
        )
    return environment[stated]


SECRET_FILES = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    "gs": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_CLIENT_SECRET"),
}
"""Files that are read for a URL of that scheme: the names that the variables have."""


def read_mounted(url: str, environment: Mapping[str, str]) -> Mapping[str, str]:
    """The credentials that are mounted now; none where no Secret is.

    Args:
        url: of the store.
        environment: says where the Secret is mounted.

    Raises:
        StorageError: they cannot be read.
    """
    stated = environment.get(names.ENV_KEY_HOME)
    wanted = SECRET_FILES.get(url.partition("://")[0], ())
    if not stated:
        return {}
    folder = pathlib.Path(stated)
    try:
        found = {
            name: content.decode().strip()
            for name, content in mounted_files.read(folder, wanted).items()
        }
    except (OSError, UnicodeError) as cause:
        raise errors.StorageError(f"the Secret mounted at {folder} cannot be read") from cause
    return {name: value for name, value in found.items() if value}


def drop_shadowed_variables(environment: MutableMapping[str, str]) -> None:
    """Forget the variables in whose place files are: what leaves the Secret must not live on.

    All of a store are forgotten if one of them is a file: a session's token belongs to its key.

    Args:
        environment: of the process, in which nothing else runs yet.
    """
    for scheme, wanted in SECRET_FILES.items():
        # Files that cannot be read are told when the store is to be used.
        with contextlib.suppress(errors.StorageError):
            if read_mounted(f"{scheme}://", environment):
                for name in wanted:
                    environment.pop(name, None)
