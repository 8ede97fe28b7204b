# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Signatures are those of AWS's own examples."""

from __future__ import annotations

from rover_kf.checkpoint.s3_signature import Account, Request, headers

ACCOUNT = Account(
    "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "", "us-east-1"
)


def test_the_examples_of_the_documentation():
    """ "GET Bucket Lifecycle" and "GET Bucket (List Objects)"."""
    for query, signature in [
        ({"lifecycle": ""}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        (
            {"max-keys": "2", "prefix": "J"},
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ]:
        request = Request("GET", "examplebucket.s3.amazonaws.com", "/", query)
        found = headers(ACCOUNT, request, now="20130524T000000Z")["Authorization"]
        assert found == (
            "AWS4-HMAC-SHA256 "
            "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
            "SignedHeaders=host;x-amz-content-sha256;x-amz-date,"
            f"Signature={signature}"
        )


def test_a_session_has_its_token_signed():
    """And no secret is in what is printed of an account."""
    account = Account("the key", "the secret", "the token", "eu-west-1")
    found = headers(account, Request("DELETE", "h:1", "/b/ä b", {"uploadId": "1/2"}), now="2T")
    assert found["x-amz-security-token"] == "the token"
    assert "x-amz-security-token" in found["Authorization"]
    assert repr(account) == "Account(region='eu-west-1')"


def test_a_target_is_quoted_as_it_is_signed():
    """Slashes of the path stay; all else that is special is quoted, the query in order."""
    request = Request("GET", "h", "/b/a b/ä+", {"z": "1/2", "a": ""})
    assert request.target == "/b/a%20b/%C3%A4%2B?a=&z=1%2F2"
