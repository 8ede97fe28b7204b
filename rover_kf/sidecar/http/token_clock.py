# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The time as the API server tells it in this pod's own token: nodes' clocks may be wrong, or jump.

A token says when it was issued and when it ends, and the kubelet replaces it long before that.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import logging
import time

from rover_kf import errors
from rover_kf.sidecar.http.peer_client import Token
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.system.steady_clock import MonotonicWallClock

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLifetime:
    """Of a token; Unix seconds."""

    issued_at: float
    expires_at: float


class TokenClock:
    """A clock by the API server's time in this pod's token; without one by the machine's."""

    def __init__(self, settings: SidecarSettings) -> None:
        cluster = settings.auth == "serviceaccount"
        self._token = Token(settings.token_home / "token") if cluster else None
        self._clock = MonotonicWallClock()
        self._text, self._read_at = "", 0.0
        self._lifetime: TokenLifetime | None = None

    def now(self) -> float:
        """Unix seconds: of this machine, unless this pod's own token says that they are wrong."""
        guess, life = self._clock.now(), self._read()
        if life is None:
            return guess
        least = life.issued_at + time.monotonic() - self._read_at
        return guess if least <= guess <= life.expires_at else least

    def pod_started_at(self) -> float:
        """When this pod's token was issued: after every token of a pod that it takes the place of.

        Asked at the pod's first start; Unix seconds.
        """
        life = self._read()
        return self._clock.now() if life is None else life.issued_at

    def _read(self) -> TokenLifetime | None:
        text = self._read_token()
        if text != self._text:
            self._text, self._lifetime, self._read_at = text, parse_lifetime(text), time.monotonic()
        return self._lifetime

    def _read_token(self) -> str:
        try:
            return self._token.read() if self._token else ""
        except errors.ClusterUnavailable as error:
            _log.warning("this machine's clock is believed: %s", error)
            return ""


def parse_lifetime(token: str) -> TokenLifetime | None:
    """Return when a token was issued and when it ends, unverified; None if it has neither."""
    body = token.split(".")[1] if token.count(".") == 2 else ""  # noqa: PLR2004 - a JWT's parts
    try:
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return TokenLifetime(float(claims["iat"]), float(claims["exp"]))
    except (binascii.Error, ValueError, KeyError, TypeError):
        return None
