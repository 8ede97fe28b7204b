# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is told of a store's refusal: its meaning and what to do, never what was sent."""

from __future__ import annotations

import pytest

from rover_kf.checkpoint.storage import bucket_errors

S3 = """Generic S3 error: Error performing PUT http://s3.local/b/k?X-Amz-Signature=0123 in 1ms, \
after 4 retries, max_retries: 4, retry_timeout: 10s  - \
Server returned non-2xx status code: {status}: <?xml version="1.0"?>
<Error><Code>{code}</Code><Message>{message}</Message><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>

Debug source:
Generic {{ secret: 0123 }}"""


@pytest.mark.parametrize(
    ("text", "answer", "advice"),
    [
        (
            S3.format(status=404, code="NoSuchBucket", message="None"),
            "NoSuchBucket: None",
            "make",
        ),
        (S3.format(status=403, code="AccessDenied", message="No."), "AccessDenied: No.", "Secret"),
        (S3.format(status=403, code="RequestTimeTooSkewed", message="Far."), "Far.", "clock"),
        (S3.format(status=503, code="SlowDown", message="Wait."), "SlowDown: Wait.", "stays as it"),
        (
            (
                "Error performing GET https://a.blob.core.windows.net/c/k?sig=0123&se=1 in 3ms - "
                "Server returned non-2xx status code: 403 Forbidden: "
            ),
            "status 403",
            "Secret",
        ),
        (
            "Error performing PUT http://169.254.169.254/latest/api/token",
            "",
            "no usable credentials",
        ),
        ("Generic GCS error: GCP credential error: no key", "", "no usable credentials"),
        (
            "Error performing PUT https://h/k?sig=0123 - HTTP error: operation timed out",
            "no",
            "end",
        ),
        (
            "Error performing GET https://b.s3.local/k - Received redirect without LOCATION",
            "",
            "AWS_REGION",
        ),
        (S3.format(status=400, code="InvalidBucketName", message="No."), "No.", "correct rover-kf"),
        ("Something else at https://h/k?sig=0123&x=AKIA and more", "and more", "stays as it"),
    ],
)
def test_a_refusal_says_what_to_do_and_hides_the_request(text, answer, advice):
    """The store's code and sentence, or the status, or that there was no answer."""
    found = bucket_errors.explain_store_error(RuntimeError(text))
    said, todo = found.split("; ", 1)
    assert answer in said
    assert advice in todo
    for hidden in ("0123", "AKIA", "Debug"):
        assert hidden not in found
    assert "\n" not in found
