# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A credential opens one door: the pods of a job read whatever its coordinator receives."""

from __future__ import annotations

import dataclasses
import http.server
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa

from controller.authorization import ClusterAccess
from rover_kf.api import names
from rover_kf.api.jobs import JobKey, Pod
from rover_kf.cluster.kubernetes.api import KubernetesApi
from rover_kf.cluster.kubernetes.coordinator_tokens import LIFETIME_SECONDS, CoordinatorTokens
from rover_kf.cluster.kubernetes.transport import PodNetworkTransport
from rover_kf.history.store import SqlHistory
from rover_kf.sidecar.http.app import PUBLIC_PATHS, make_application
from rover_kf.sidecar.http.authentication import CONTROLLER_PATHS, ServiceAccountAuthenticator
from rover_kf.webhook.history_api import HistoryServer
from tests.support.pods import checkpoint_pod
from tests.support.servers.served_app import Served

ACCOUNT = "rover-kf-system:rover-kf-controller"
LLM, EVIL = JobKey("team-b", "llm"), JobKey("team-a", "evil")
SLOT = f"{names.PATH_SLOTS}/0/1-1-7-1"
PATHS = [
    SLOT,
    *sorted(
        value
        for name, value in vars(names).items()
        if name.startswith("PATH_") and value not in (names.PATH_HISTORY, names.PATH_SLOTS)
    ),
]
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclasses.dataclass(frozen=True)
class Bearer:
    """A party, what its token says, and how long ago it ended."""

    account: str
    audience: str
    pod: str = ""
    ended: float = -600.0

    @property
    def token(self) -> str:
        """As the API server signs it."""
        namespace, _, account = self.account.partition(":")
        body: dict[str, Any] = {
            "sub": f"system:serviceaccount:{namespace}:{account}",
            "aud": [self.audience],
            "exp": time.time() - self.ended,
            "kubernetes.io": {"namespace": namespace},
        }
        if self.pod:
            body["kubernetes.io"]["pod"] = {"name": self.pod}
        return jwt.encode(body, KEY, "RS256", headers={"kid": "k"})


API = "https://kubernetes.default.svc"
BEARERS = {
    "pod": Bearer("team-b:default", names.AUDIENCE, "llm-worker-1"),
    "controller": Bearer(ACCOUNT, LLM.controller_audience),
    "controller, ended": Bearer(ACCOUNT, LLM.controller_audience, ended=1.0),
    "controller, for another job": Bearer(ACCOUNT, EVIL.controller_audience),
    "controller, as a pod": Bearer(ACCOUNT, names.AUDIENCE, "rover-kf-controller-0"),
    "controller, for the API server": Bearer(ACCOUNT, API),
    "pod of another job": Bearer("team-b:default", names.AUDIENCE, "other-worker-0"),
    "pod of another namespace": Bearer("team-a:default", names.AUDIENCE, "llm-worker-1"),
    "pod, ended": Bearer("team-b:default", names.AUDIENCE, "llm-worker-1", ended=1.0),
    "pod, with the controller's audience": Bearer(
        "team-b:default", LLM.controller_audience, "llm-worker-1"
    ),
    "pod, for the API server": Bearer("team-b:default", API, "llm-worker-1"),
}
OPENS = {
    "pod": set(PATHS),
    "controller": set(CONTROLLER_PATHS) | PUBLIC_PATHS,
    **{bearer: set(PUBLIC_PATHS) for bearer in BEARERS if bearer not in ("pod", "controller")},
}
"""Of a sidecar of job llm in team-b; what is open to all is open to a wrong token as well."""


@pytest.fixture
def sidecar(tmp_path) -> Iterator[str]:
    """The application of llm's coordinator, with every path that a sidecar has."""
    settings = checkpoint_pod.settings_of(
        tmp_path, job=LLM.name, namespace=LLM.namespace, pod="llm-worker-0",
        auth="serviceaccount", controller_account=ACCOUNT,
    )  # fmt: skip
    authenticator = ServiceAccountAuthenticator(settings)
    public = jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
    authenticator._keys = {"k": jwt.PyJWK({**public, "kid": "k"}, "RS256")}
    authenticator._fetched = time.monotonic()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="reached")

    routes = [web.get(path, answer) for path in PATHS]
    with Served(make_application(routes, authenticator)) as url:
        yield url


def opened(url: str, token: str) -> bool:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            status = reply.status
    except urllib.error.HTTPError as refusal:
        status = refusal.code
        refusal.close()
    return {200: True, 401: False}[status]


@pytest.mark.parametrize("bearer", BEARERS)
def test_a_token_opens_its_own_door_only(sidecar, bearer):
    """Each party's token at each path of another job's and its own sidecar. The controller's token
    of bcea6b1 opened every path of every job."""
    token = BEARERS[bearer].token
    assert {path for path in PATHS if opened(sidecar + path, token)} == OPENS[bearer]


def test_a_token_that_opened_one_path_opens_no_other(sidecar):
    """What is remembered of a verified token is remembered for its own paths."""
    token = BEARERS["controller"].token
    for path, open_ in ((names.PATH_SCALE, True), (SLOT, False), (names.PATH_LOST, True)):
        assert opened(sidecar + path, token) is open_


class Reviews:
    """A TokenReview as the API server makes it: a token for another audience is nobody's."""

    def request(self, method: str, path: str, *, what: str, body: Any) -> dict[str, Any]:
        assert (method, body["kind"]) == ("POST", "TokenReview"), (path, what)
        audiences = body["spec"].get("audiences", [API])
        found = jwt.decode(body["spec"]["token"], options={"verify_signature": False})
        known = found["exp"] > time.time() and set(audiences) & set(found["aud"])
        user = {"username": found["sub"]} if known else {}
        return {"status": {"authenticated": bool(known), "user": user}}


@pytest.mark.parametrize("bearer", BEARERS)
def test_the_history_takes_no_token_of_sidecars(tmp_path, bearer):
    """bcea6b1's history took the controller's own token, which every tenant's pod received, and
    showed the runs of all namespaces."""
    token = BEARERS[bearer].token
    caller = ClusterAccess(Reviews()).caller(token)
    assert (caller is not None) == (BEARERS[bearer].audience == API)
    if caller is None:
        app = web.Application()
        with SqlHistory(f"sqlite:///{tmp_path}/h.db") as history:
            HistoryServer(history, ClusterAccess(Reviews())).add_to(app)
            with Served(app) as url:
                assert not opened(f"{url}{names.PATH_HISTORY}?namespace=team-b", token)


@pytest.fixture
def tenant(monkeypatch) -> Iterator[tuple[str, list[str | None]]]:
    """A tenant's server in a coordinator's place; the headers that it received."""
    received: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Not to the terminal."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setattr(names, "PORT", server.server_port)
    yield "127.0.0.1", received
    server.shutdown()
    thread.join()
    server.server_close()


class Issuer(KubernetesApi):
    """An API server that issues what a TokenRequest asks for."""

    def __init__(self) -> None:
        self.requested: list[tuple[str, dict[str, Any]]] = []

    def request(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
        spec = json.loads(json.dumps(rest["body"]))["spec"]
        assert method == "POST"
        self.requested.append((path, spec))
        return {"status": {"token": Bearer(ACCOUNT, *spec["audiences"]).token}}


def test_a_tenants_pod_receives_nothing_that_opens_another_job(sidecar, tenant, tmp_path):
    """bcea6b1's controller sent its cluster-wide token with each GET of the status."""
    address, received = tenant
    issuer = Issuer()
    tokens = CoordinatorTokens(issuer, ACCOUNT)
    network = PodNetworkTransport(tmp_path / "none", tokens.get)
    pod = Pod("evil-worker-0", "1", "worker", 0, "Running", address)
    network.request(EVIL, pod, "GET", f"{names.PATH_STATUS}?after=0", None)
    assert received == [None]
    for path in CONTROLLER_PATHS:
        network.request(EVIL, pod, "POST", path, b"{}")
    (stolen,) = {text.removeprefix("Bearer ") for text in received if text is not None}
    assert {path for path in PATHS if opened(sidecar + path, stolen)} == PUBLIC_PATHS
    account = "/api/v1/namespaces/rover-kf-system/serviceaccounts/rover-kf-controller/token"
    expected = {"audiences": ["rover-kf:team-a/evil"], "expirationSeconds": LIFETIME_SECONDS}
    assert issuer.requested == [(account, expected)]


def test_a_token_is_requested_again_before_it_ends():
    """And another job never receives the one that is kept."""
    now = [0.0]
    issuer = Issuer()
    tokens = CoordinatorTokens(issuer, ACCOUNT, clock=lambda: now[0])
    first = tokens.get(EVIL)
    assert (tokens.get(EVIL), len(issuer.requested)) == (first, 1)
    assert tokens.get(LLM) != first
    now[0] = LIFETIME_SECONDS / 2
    tokens.get(EVIL)
    assert [spec["audiences"] for _, spec in issuer.requested] == [
        [EVIL.controller_audience],
        [LLM.controller_audience],
        [EVIL.controller_audience],
    ]
