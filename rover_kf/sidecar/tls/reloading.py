# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""TLS of a running sidecar: follows the mounted files, so that nothing is closed when they change.

A connection keeps what it began with. The next one gets what is right then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import ssl
from collections.abc import Callable

import aiohttp

from rover_kf import errors
from rover_kf.api import names
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.tasks import lasting
from rover_kf.sidecar.tls import certificate, rotation
from rover_kf.sidecar.tls.certificate import Certificate
from rover_kf.sidecar.tls.rotation import Rotation
from rover_kf.system import tls
from rover_kf.system.steady_clock import SteadyClock

_log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Between two looks at the files."""
AGAIN_SECONDS = 600.0
"""Between two times that the same is told."""

Teller = Callable[[str], None]


class Secured:
    """One a sidecar.

    Args:
        folder: of the mounted files.
        namespace: of the pod.
        tell: what is told of a certificate that does not fit, or ends.
    """

    def __init__(self, folder: pathlib.Path, namespace: str, tell: Teller) -> None:
        self._folder, self._namespace, self._tell = folder, namespace, tell
        self._clock = SteadyClock()
        self._files: dict[str, bytes] = {}
        self._found: Certificate | None = None
        self._rotation: Rotation | None = None
        self._shown: ssl.SSLContext | None = None
        self._task: asyncio.Task[None] | None = None
        self._told: dict[str, float] = {}
        self.name = tls.server_name(namespace)
        """That other pods' certificates have to have."""
        self.asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        """For requests to other pods; takes no certificate at all before there is an authority."""
        self.listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """For the listener: each connection gets the certificate of its moment."""
        self.listening.minimum_version = ssl.TLSVersion.TLSv1_3
        self.listening.num_tickets = 0
        self.listening.sni_callback = self._chosen

    @property
    def ends(self) -> float:
        """When the certificate that is shown ends, Unix seconds; 0: there is none."""
        return self._rotation.shown.ends if self._rotation else 0.0

    async def start(self, stopped: asyncio.Event) -> bool:
        """Wait for a certificate that fits: without one nothing is answered and nothing is asked.

        Args:
            stopped: nobody waits for it any more.

        Returns:
            Whether there is one.
        """
        while not self.look():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stopped.wait(), LOOK_SECONDS)
                return False
        self._task = lasting(self._follow)
        return True

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def look(self) -> bool:
        """Take what is mounted now, if it fits; returns whether there is a certificate to show."""
        now = self._clock.now()
        try:
            files = certificate.files(self._folder)
            if files != self._files:
                self._found = certificate.of(files, self._folder, self._namespace)
                self._files = files
        except errors.InputError as error:
            self._say("unfit", str(error), now)
        if self._found is None:
            return False
        before, found = self._rotation, self._found
        after = rotation.advance(before, found, now) if before else rotation.begin(found)
        self._rotation = after
        self._use(before, after)
        if after.shown.ends_soon(now):
            left = max(0.0, (after.shown.ends - now) / 3600)
            self._say("end", f"the certificate in use ends in {left:.1f} hours", now)
        return True

    def _use(self, before: Rotation | None, after: Rotation) -> None:
        if before is None or before.shown != after.shown:
            self._shown = after.shown.serving()
            _log.info("shows the certificate that ends at %d", after.shown.ends)
        if before is None or before.authorities != after.authorities:
            self.asking = tls.verifying(after.authorities)
            _log.info("takes certificates of %d authorities", len(after.trusted))

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def _chosen(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        if self._shown is not None:
            connection.context = self._shown

    def _say(self, what: str, message: str, now: float) -> None:
        if now < self._told.get(what, -AGAIN_SECONDS) + AGAIN_SECONDS:
            return
        self._told[what] = now
        self._tell(message)


def secured(settings: SidecarSettings, tell: Teller) -> Secured | None:
    """As the settings ask for it; None: plain HTTP."""
    return Secured(settings.tls_home, settings.namespace, tell) if settings.tls_home else None


def why(cause: Exception) -> str:
    """What kept a request from another sidecar, with what to do where TLS did."""
    if isinstance(cause, aiohttp.ClientConnectorCertificateError):
        refused = cause.certificate_error
        told = getattr(refused, "verify_message", "") or str(refused)
        return f"its certificate is refused ({told}): see rover-kf doctor, docs/security.md"
    if isinstance(cause, aiohttp.ClientConnectorSSLError):
        key = f"{names.PREFIX}tls.secret"
        return f"{cause}; all pods of a job need the same {key}: suspend and resume it"
    return str(cause)
