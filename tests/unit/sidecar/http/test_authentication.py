# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who may ask a sidecar over TCP."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import pathlib
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from rover_kf import errors
from rover_kf.api import names
from rover_kf.sidecar.http.authentication import (
    ServiceAccountAuthenticator,
    SharedTokenAuthenticator,
    is_authorized,
    make_authenticator,
)
from rover_kf.sidecar.http.peer_client import Token
from rover_kf.sidecar.settings import SidecarSettings
from tests.support.pods import checkpoint_pod


def make(folder: pathlib.Path, **changes: Any) -> SidecarSettings:
    of_train = {"job": "train", "namespace": "team", "pod": "train-worker-0"}
    return checkpoint_pod.settings_of(folder, **of_train, **{"auth": "serviceaccount", **changes})


PATH = names.PATH_SCALE


def controller(**changes: Any) -> dict[str, Any]:
    made = {"sub": "system:serviceaccount:kubeflow:rover-kf", "aud": ["rover-kf:team/train"]}
    return {**made, "exp": time.time() + 600, **changes}


def claims(pod: str = "train-worker-1", namespace: str = "team") -> dict[str, Any]:
    return {
        "sub": f"system:serviceaccount:{namespace}:default",
        "aud": ["rover-kf"],
        "exp": time.time() + 600,
        "kubernetes.io": {"namespace": namespace, "pod": {"name": pod}},
    }


def test_shared_token(tmp_path):
    """Only the very token opens; none and another do not."""
    (tmp_path / "token").write_text("secret\n")
    gate = SharedTokenAuthenticator(Token(tmp_path / "token"))
    given = ["Bearer secret", "bearer secret", "Bearer secre", "secret", "", "Bearer "]
    found = [asyncio.run(gate.admit(header, PATH)) for header in given]
    assert found == [True, True, False, False, False, False]


@pytest.mark.parametrize(
    ("found", "good"),
    [
        (claims(), True),
        (claims("train-master-0"), True),
        (claims("train-worker-1-evil"), False),
        (claims("other-worker-1"), False),
        (claims(namespace="elsewhere"), False),
        (claims() | {"aud": "rover-kf"}, True),
        (claims() | {"aud": "rover-kf:team/train"}, False),
        (controller(), True),
        (controller(aud=["rover-kf"]), False),
        (controller(aud="rover-kf:team/other"), False),
        (controller(sub="system:serviceaccount:team:rover-kf"), False),
    ],
)
def test_is_authorized(tmp_path, found, good):
    """Pods of this job in this namespace, and the controller by a token for this job; no other."""
    settings = make(tmp_path, controller_account="kubeflow:rover-kf")
    assert is_authorized(found, settings, names.PATH_SCALE) is good


def test_the_controller_opens_no_path_that_it_does_not_use(tmp_path):
    """Neither a slot nor the coordinator's state; where no controller is known, nothing."""
    settings = make(tmp_path, controller_account="kubeflow:rover-kf")
    for path in (f"{names.PATH_SLOTS}/0/1-1-7-1", names.PATH_STATE, names.PATH_FAILURE):
        assert not is_authorized(controller(), settings, path)
    assert not is_authorized(controller(sub="system:serviceaccount::"), make(tmp_path), PATH)


def test_signed_tokens(tmp_path):
    """A token is good if the cluster signed it for rover-kf and it has not expired."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    gate = ServiceAccountAuthenticator(make(tmp_path))
    public = jwt.PyJWK(
        {**jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "k"}, "RS256"
    )
    gate._keys, gate._fetched = {"k": public}, time.monotonic()

    def admitted(body: dict[str, Any], signer: rsa.RSAPrivateKey = key, kid: str = "k") -> bool:
        token = jwt.encode(body, signer, algorithm="RS256", headers={"kid": kid})
        return asyncio.run(gate.admit(f"Bearer {token}", PATH))

    assert admitted(claims())
    assert admitted(claims())
    assert not admitted(claims(), other)
    assert not admitted(claims(), kid="unheard-of")
    assert not admitted(claims() | {"aud": ["api"]})
    assert not admitted(claims() | {"exp": time.time() - 5})
    assert not admitted(claims("stranger-worker-0"))
    assert not asyncio.run(gate.admit("Bearer rubbish", PATH))


@pytest.mark.parametrize("alg", ["none", "HS256", "RS256", "ES256", "PS256", "EdDSA", "", 7, None])
def test_a_strange_token_is_refused(tmp_path, alg):
    """Another algorithm than the key's (the public key as a secret, too), parts that are no JSON,
    claims of any type: never let in, never a mistake."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    gate = ServiceAccountAuthenticator(make(tmp_path))
    public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    gate._keys = {"k": jwt.PyJWK({**public, "kid": "k"}, "RS256")}
    gate._fetched = time.monotonic()

    def part(value: object) -> str:
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(text).rstrip(b"=").decode()

    heads = [
        {"alg": alg, "kid": "k"},
        {"alg": alg},
        {"alg": alg, "kid": ["k"]},
        {"kid": "k"},
        [alg],
    ]
    bodies = [claims(), {}, [], None, b"\xff", b"[" * 9000, claims() | {"exp": "soon"}]
    secret = hmac.digest(str(public["n"]).encode(), b"x", "sha256")
    tokens = [
        f"{part(head)}.{part(body)}.{signature}"
        for head in heads
        for body in bodies
        for signature in ("", "e30", part(secret), "=" * 90)
    ]
    tokens += ["", ".", "..", "...", "a.b.c", "e30", "\ud800.e30.e30", "ü.e30.e30", "." * 9000]
    assert not any(asyncio.run(gate.admit(f"Bearer {token}", PATH)) for token in tokens)
    print(f"{len(tokens)} tokens refused")


@pytest.mark.parametrize("wrong_by", [-1800.0, 7200.0])
def test_a_wrong_clock_refuses_nobody(tmp_path, monkeypatch, wrong_by):
    """A node whose clock is behind or ahead takes its peers' tokens as other nodes do."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    issued = int(time.time())
    times = {"iat": issued, "nbf": issued, "exp": issued + 3600}
    (tmp_path / "token").write_text(jwt.encode(times, key, algorithm="RS256"))
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + wrong_by)
    gate = ServiceAccountAuthenticator(make(tmp_path))
    public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    gate._keys = {"k": jwt.PyJWK({**public, "kid": "k"}, "RS256")}
    gate._fetched = time.monotonic()

    def admitted(**changed: int) -> bool:
        body = claims() | times | changed
        text = jwt.encode(body, key, algorithm="RS256", headers={"kid": "k"})
        return asyncio.run(gate.admit(f"Bearer {text}", PATH))

    assert admitted()
    assert not admitted(exp=issued - 5)


def test_unknown_auth(tmp_path):
    """A setting that names no way is refused with those there are."""
    with pytest.raises(errors.InputError, match="serviceaccount"):
        make_authenticator(make(tmp_path, auth="none"))
