# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What an object store's refusal means and what to do about it; pure.

The client's errors carry whole requests and replies, access keys and signatures among them. Only
what is named here leaves this module.
"""

from __future__ import annotations

import html
import re

from rover_kf.api import names

_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,200})</Message>")
_STATUS = re.compile(r"status code: (\d{3})")
_DENIED = re.compile(
    r"PermissionDenied|Unauthenticated|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch"
    r"|AuthenticationFailed|AuthorizationFailure|UserNotFound|ExpiredToken|InvalidToken"
    r"|status code: 40[13]"
)
_NO_BUCKET = re.compile(r"NoSuchBucket|InvalidBucketName|ContainerNotFound|bucket does not exist")
_NO_CREDENTIALS = re.compile(
    r"169\.254\.169\.254|metadata\.google\.internal|credential error|must be specified"
    r"|Missing (SecretAccessKey|AccessKeyId)",
    re.IGNORECASE,
)
_UNTRUSTED = re.compile(r"\bInvalidCertificate\b")
_NO_HOST = re.compile(r"\bdns error\b")
_REGION = re.compile(
    r"AuthorizationHeaderMalformed|PermanentRedirect|redirect without LOCATION", re.IGNORECASE
)
_CLOCK = re.compile(r"RequestTimeTooSkewed")
_SILENT = re.compile(r"timed out|\btimeout|error sending request|connect|request or response body")
_FULL = re.compile(
    r"status code: 507|no space|InsufficientStorage|QuotaExceeded|StorageFull", re.IGNORECASE
)
_UNFIT = re.compile(r"InvalidUri|InvalidHeaderValue")

_SECRET = (
    f"the Secret that {names.PREFIX}checkpoint.secret names (a job's), or the environment "
    "(a command's)"
)

_NETWORK = "check the endpoint (AWS_ENDPOINT_URL) and the network between it and the pod"
_TRUST = (
    "name a file of its authority's certificate by SSL_CERT_FILE; for a job, ca.crt in the Secret "
    f"of the credentials: {names.KEY_HOME}/ca.crt"
)


def explain_store_error(error: BaseException) -> str:
    """One line: what the store answered, and what to do.

    Args:
        error: of the client, from a request.
    """
    text, _, details = f"{type(error).__name__} {error}".partition("\n\nDebug source")
    if _UNTRUSTED.search(details):
        return f"the server's certificate is not trusted; {_TRUST}"
    if _NO_HOST.search(details) and not _NO_CREDENTIALS.search(text):
        return f"no such host; {_NETWORK}"
    return f"{_reply_text(text.partition(' ')[2])}; {_advice(text)}"


def is_beyond_end(error: Exception) -> bool:
    """Whether a range began where the object had ended already."""
    return "status code: 416" in str(error)


def is_unsupported(error: Exception) -> bool:
    """Whether the server does not know what was asked for, such as a condition of a write."""
    return "status code: 501" in str(error)


def _reply_text(text: str) -> str:
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code:
        return f"{code[1]}: {html.unescape(message[1])}" if message else code[1]
    status = _STATUS.search(text)
    if status:
        return f"status {status[1]}"
    if _SILENT.search(text):
        return "no answer"
    # A query may be a signature or a token.
    return re.sub(r"\?\S*", "", text.split("\n", 1)[0])[:200]


def _advice(text: str) -> str:
    if _UNFIT.search(text):
        return f"a value in {_SECRET} has a character that it may not have, such as a line break"
    if _NO_BUCKET.search(text):
        return f"make the bucket, or correct {names.PREFIX}checkpoint.path"
    if _NO_CREDENTIALS.search(text):
        return f"no usable credentials: give them in {_SECRET}"
    if _REGION.search(text):
        return f"AWS_REGION has to be the bucket's region; correct it in {_SECRET}"
    if _CLOCK.search(text):
        return "set the clock of the pod's node, or of the store"
    if _DENIED.search(text):
        return f"check {_SECRET}; the account must be able to list, read, write and delete"
    if _FULL.search(text):
        return f"make room, or lower {names.PREFIX}checkpoint.keep"
    if _SILENT.search(text):
        return _NETWORK
    return "what is on storage already stays as it is"
