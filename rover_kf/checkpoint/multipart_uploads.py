# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Uploads to S3 that a killed sidecar left half-done: they are in no listing, but are paid for.

The client that we use cannot list them, so the two requests are made here. They need a key in the
environment or a mounted Secret; without one, and on Google Cloud Storage, a lifecycle rule of the
bucket does it (docs/checkpoint-storage.md); Azure drops them by itself.
"""

from __future__ import annotations

import datetime as dt
import http.client
import logging
import os
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping

from rover_kf.checkpoint import mounted_keys, s3_signature, store_variables

_log = logging.getLogger(__name__)

_MOST_REPLY_BYTES = 16 << 20


def collect(url: str, is_over: Callable[[str], bool], *, seconds: float) -> int:
    """Abort uploads below a URL; a store that refuses is logged, since nothing depends on it.

    Args:
        url: of the job's checkpoints; nothing is done unless it begins with ``s3://``.
        is_over: says of a key below the URL whether nobody uploads it any more.
        seconds: for each request.

    Returns:
        How many were aborted.
    """
    account = _account({**os.environ, **mounted_keys.read(url, os.environ)})
    if not url.startswith("s3://") or account is None:
        return 0
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    count = 0
    try:
        query = {"uploads": "", "prefix": f"{prefix}/"}
        reply = _ask(account, "GET", f"/{bucket}", query, seconds=seconds)
        listing = ET.fromstring(reply)  # noqa: S314 - of bounded size, from the person's own store
        for upload in listing.iterfind("{*}Upload"):
            key, number = upload.findtext("{*}Key", ""), upload.findtext("{*}UploadId", "")
            if number and is_over(key.removeprefix(f"{prefix}/")):
                query = {"uploadId": number}
                _ask(account, "DELETE", f"/{bucket}/{key}", query, seconds=seconds)
                count += 1
    except (OSError, http.client.HTTPException, ET.ParseError) as error:
        _log.info("unfinished uploads below %s stay: %s", url, error)
    return count


def _account(environment: Mapping[str, str]) -> s3_signature.Account | None:
    key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not key or not secret:
        return None
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    return s3_signature.Account(key, secret, environment.get("AWS_SESSION_TOKEN", ""), region)


def _endpoint(environment: Mapping[str, str], region: str) -> str:
    stated = store_variables.endpoint(environment)
    return (stated or f"https://s3.{region}.amazonaws.com").rstrip("/")


def _ask(
    account: s3_signature.Account,
    method: str,
    path: str,
    query: Mapping[str, str],
    *,
    seconds: float,
) -> bytes:
    endpoint = _endpoint(os.environ, account.region)
    asked = s3_signature.Request(method, urllib.parse.urlsplit(endpoint).netloc, path, query)
    now = dt.datetime.now(dt.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    headers = s3_signature.headers(account, asked, now=now)
    request = urllib.request.Request(  # noqa: S310 - the endpoint is the person's own
        endpoint + asked.target, method=method, headers=headers
    )
    with urllib.request.urlopen(request, timeout=seconds) as reply:  # noqa: S310 - the same
        data: bytes = reply.read(_MOST_REPLY_BYTES)
        return data
