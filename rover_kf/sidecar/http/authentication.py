# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The callers that a sidecar admits over TCP.

Kubernetes: a service-account token that the cluster's keys have signed. Its bearer is a pod of this
job (audience rover-kf, namespace and name of the pod), or the controller's account. The controller
is admitted with the audience of this job only, and on the paths that it uses only: a job's owner
sees what the controller sends to its pods, and must not be able to use it elsewhere. token_clock.py
decides when a token ends, since a node's clock may be wrong. Nobody has a token that begins later.
Embedded: one random token that the job's pods share. Anything else is refused with 401.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import ssl
import time
from typing import Any

import aiohttp

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.sidecar.http.app import Authenticator
from rover_kf.sidecar.http.peer_client import Token
from rover_kf.sidecar.http.token_clock import TokenClock
from rover_kf.sidecar.settings import SidecarSettings

KEYS_URL = "https://kubernetes.default.svc/openid/v1/jwks"
KEYS_SECONDS = 3600.0
"""For which the cluster's keys are used; an unknown key fetches them again."""
KEYS_MIN_SECONDS = 5.0
VERIFIED_SECONDS = 60.0
"""How long a token that was verified is taken without verifying it again."""
MAX_VERIFIED = 4096
CONTROLLER_PATHS = frozenset(
    {names.PATH_SCALE, names.PATH_ABSENT, names.PATH_LOST, names.PATH_PODS}
)
"""Paths that the controller requests; its token opens no other one."""
_JWT_OPTIONS: Any = {
    "require": ["exp", "aud", "sub"],
    "verify_exp": False,
    "verify_iat": False,
    "verify_nbf": False,
}
"""The times are not: see above."""

_log = logging.getLogger(__name__)


def make_authenticator(settings: SidecarSettings) -> Authenticator:
    """The gate that the settings ask for.

    Raises:
        InputError: an unknown way to authenticate.
    """
    if settings.auth == "shared":
        return SharedTokenAuthenticator(Token(settings.token_home / "token"))
    if settings.auth == "serviceaccount":
        return ServiceAccountAuthenticator(settings)
    raise errors.InputError(
        f"{names.ENV_AUTH} is {settings.auth!r}; allowed: 'serviceaccount', 'shared'"
    )


class SharedTokenAuthenticator:
    """Everybody who knows the token."""

    def __init__(self, token: Token) -> None:
        self._token = token

    async def admit(self, authorization: str, path: str) -> bool:  # noqa: ARG002 - opens all
        """See app.Authenticator."""
        wanted = self._token.read()
        given = _bearer(authorization)
        return bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())


class ServiceAccountAuthenticator:
    """Pods of this job, and the controller, by tokens that the cluster has signed."""

    def __init__(self, settings: SidecarSettings, keys_url: str = KEYS_URL) -> None:
        self._settings, self._keys_url = settings, keys_url
        self._clock = TokenClock(settings)
        self._api_token = Token(settings.token_home / "api-token")
        self._keys: dict[str, Any] = {}
        self._fetched = -KEYS_SECONDS
        self._fetching = asyncio.Lock()
        self._audience = JobKey(settings.namespace, settings.job).controller_audience
        self._verified: dict[tuple[str, bool], float] = {}
        """Until when; by token, and by whether it opened a path of the controller's."""

    async def admit(self, authorization: str, path: str) -> bool:
        """See app.Authenticator."""
        token = _bearer(authorization)
        if not token:
            return False
        key = (token, path in CONTROLLER_PATHS)
        if time.monotonic() < self._verified.get(key, 0.0):
            return True
        claims = await self._verify(token)
        if claims is None or not is_authorized(claims, self._settings, path):
            return False
        left = float(claims["exp"]) - self._clock.now()
        if left <= 0:
            _log.warning("a token of %s was refused: it has expired", claims["sub"])
            return False
        if len(self._verified) >= MAX_VERIFIED:
            self._verified.clear()
        self._verified[key] = time.monotonic() + min(left, VERIFIED_SECONDS)
        return True

    async def _verify(self, token: str) -> dict[str, Any] | None:
        import jwt  # noqa: PLC0415 - slow to load (cryptography), and not needed embedded

        try:
            key_id = str(jwt.get_unverified_header(token).get("kid", ""))
            key = await self._key(key_id)
            if key is None:
                return None
            found: dict[str, Any] = jwt.decode(
                token,
                key=key.key,
                algorithms=["RS256", "ES256", "ES384"],
                audience=[names.AUDIENCE, self._audience],
                options=_JWT_OPTIONS,
            )
        except (jwt.PyJWTError, TypeError, ValueError, AttributeError, RecursionError) as cause:
            # The last ones where an algorithm is asked for that the key is not of.
            _log.warning("a token was refused: %s", cause)
            return None
        return found

    async def _key(self, key_id: str) -> Any:
        async with self._fetching:
            age = time.monotonic() - self._fetched
            unknown = key_id not in self._keys and age > KEYS_MIN_SECONDS
            if age > KEYS_SECONDS or unknown:
                await self._fetch()
        return self._keys.get(key_id)

    async def _fetch(self) -> None:
        import jwt  # noqa: PLC0415 - see above

        trusted = ssl.create_default_context(cafile=str(self._settings.token_home / "ca.crt"))
        headers = {"Authorization": f"Bearer {self._api_token.read()}"}
        timeout = aiohttp.ClientTimeout(total=10)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(self._keys_url, headers=headers, ssl=trusted) as response,
            ):
                response.raise_for_status()
                found = jwt.PyJWKSet.from_dict(json.loads(await response.read()))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as cause:
            if self._keys:
                _log.warning("the cluster's keys could not be read again: %s", cause)
                self._fetched = time.monotonic() - KEYS_SECONDS + 30
                return
            raise errors.ClusterUnavailable(
                f"the cluster's keys at {self._keys_url} cannot be read: {cause}"
            ) from cause
        self._keys = {str(key.key_id): key for key in found.keys}
        self._fetched = time.monotonic()


def is_authorized(claims: dict[str, Any], settings: SidecarSettings, path: str) -> bool:
    """Whether the verified claims open a path: those of a pod of this job, or the controller's.

    Args:
        claims: of a token with one of the two audiences.
        settings: of the sidecar.
        path: that is requested.
    """
    stated = claims.get("aud")
    audiences = stated if isinstance(stated, list) else [stated]
    if JobKey(settings.namespace, settings.job).controller_audience in audiences:
        namespace, _, account = settings.controller_account.partition(":")
        controller = f"system:serviceaccount:{namespace}:{account}"
        known = bool(settings.controller_account) and claims.get("sub") == controller
        return known and path in CONTROLLER_PATHS
    if names.AUDIENCE not in audiences:
        return False
    bound = claims.get("kubernetes.io")
    if not isinstance(bound, dict) or bound.get("namespace") != settings.namespace:
        return False
    pod = bound.get("pod")
    name = pod.get("name", "") if isinstance(pod, dict) else ""
    pattern = re.escape(settings.job) + r"-(master|worker|chief|ps|evaluator)-\d+"
    return re.fullmatch(pattern, str(name)) is not None


def _bearer(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    # A token is ASCII; what is not would break those who compare and decode it.
    return token.strip() if scheme.lower() == "bearer" and token.isascii() else ""
