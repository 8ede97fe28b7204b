# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What an object store's client reads of the process's environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping

from rover_kf import errors

_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""The first that is stated counts."""


def strip(environment: MutableMapping[str, str]) -> None:
    """Take the space around values away.

    A Secret that was made of files (``--from-file``, ``echo … | base64``) has a newline after each,
    at which the client panics.

    Args:
        environment: of the process.
    """
    for name, value in list(environment.items()):
        if name.startswith(_PREFIXES) and value != value.strip():
            environment[name] = value.strip()


def endpoint(environment: Mapping[str, str]) -> str:
    """The URL of the S3 server; empty: Amazon's.

    Raises:
        StorageFailed: it is no URL.
    """
    stated = next((name for name in _ENDPOINTS if environment.get(name)), None)
    if stated is None:
        return ""
    if not re.fullmatch(r"https?://\S+", environment[stated]):
        raise errors.StorageFailed(
            f"{stated} is no URL such as https://s3.example.org or http://minio.minio:9000; "
            "correct it where the credentials are given"
        )
    return environment[stated]
