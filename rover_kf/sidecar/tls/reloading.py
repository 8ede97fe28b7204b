# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The TLS of a running sidecar, which follows the mounted files without closing anything.

Kubelets bring a changed Secret at different moments. A pod without a new authority would refuse a
certificate of it, and a pod without the old one the reverse. So a new authority is trusted at once,
but shown only when every pod has had the time to get it; an old one stays trusted as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import pathlib
import ssl
from collections.abc import Callable

import aiohttp

from rover_kf import errors
from rover_kf.api import names
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.tasks import run_forever
from rover_kf.sidecar.tls import certificate
from rover_kf.sidecar.tls.certificate import Certificate
from rover_kf.system import tls
from rover_kf.system.steady_clock import MonotonicWallClock

SPREAD_SECONDS = 180.0
"""Within which all kubelets bring a changed Secret: they look each minute, and cache."""
KEPT_SECONDS = 600.0
"""For which an unmounted authority is trusted: others may show it SPREAD_SECONDS longer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trusted:
    """An authority."""

    authority: str
    """PEM."""
    since: float
    """Unix seconds at which it was first seen."""
    until: float = math.inf
    """At which it is forgotten."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rotation:
    """Where it has got to; a value."""

    shown: Certificate
    trusted: tuple[Trusted, ...]

    @property
    def authorities(self) -> str:
        """PEM of all that are trusted."""
        return "\n".join(one.authority for one in self.trusted)


def start_rotation(certificate: Certificate) -> Rotation:
    """What a sidecar that starts has: nothing was shown by it before."""
    return Rotation(certificate, tuple(Trusted(one, -math.inf) for one in certificate.authorities))


def advance_rotation(rotation: Rotation, certificate: Certificate, now: float) -> Rotation:
    """Follow the newest valid certificate at a Unix time; the same one again changes nothing."""
    mounted = set(certificate.authorities)
    known = {one.authority for one in rotation.trusted}
    forgotten = now + KEPT_SECONDS
    trusted = [
        dataclasses.replace(
            one, until=math.inf if one.authority in mounted else min(one.until, forgotten)
        )
        for one in rotation.trusted
    ]
    trusted += [Trusted(one, now) for one in certificate.authorities if one not in known]
    kept = tuple(one for one in trusted if one.until > now)
    newest = max(one.since for one in kept if one.authority in mounted)
    ready = now >= newest + SPREAD_SECONDS or rotation.shown.not_after <= now
    return Rotation(certificate if ready else rotation.shown, kept)


_log = logging.getLogger(__name__)

RELOAD_SECONDS = 2.0
"""Between two looks at the files."""
REPEAT_SECONDS = 600.0
"""Between two times that the same is told."""

Notify = Callable[[str], None]


class ReloadingTls:
    """The TLS contexts of one sidecar, which follow the mounted files.

    ``notify`` gets a message about a certificate that does not fit, or ends.
    """

    def __init__(self, folder: pathlib.Path, namespace: str, notify: Notify) -> None:
        self._folder, self._namespace, self._notify = folder, namespace, notify
        self._clock = MonotonicWallClock()
        self._files: dict[str, bytes] = {}
        self._certificate: Certificate | None = None
        self._rotation: Rotation | None = None
        self._current_context: ssl.SSLContext | None = None
        self._task: asyncio.Task[None] | None = None
        self._notified_at: dict[str, float] = {}
        self.name = tls.server_name(namespace)
        """That other pods' certificates have to have."""
        self.client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        """For requests to other pods; takes no certificate at all before there is an authority."""
        self.server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """For the listener: each connection gets the certificate of its moment."""
        self.server_context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.server_context.num_tickets = 0
        self.server_context.sni_callback = self._select_context

    @property
    def not_after(self) -> float:
        """When the certificate that is shown ends, Unix seconds; 0: there is none."""
        return self._rotation.shown.not_after if self._rotation else 0.0

    async def start(self, stopped: asyncio.Event) -> bool:
        """Wait for a certificate that fits, without which nothing is served or requested."""
        while not self.reload():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stopped.wait(), RELOAD_SECONDS)
                return False
        self._task = run_forever(self._follow)
        return True

    async def stop(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def reload(self) -> bool:
        """Take what is mounted now, if it fits; returns whether there is a certificate to show."""
        now = self._clock.now()
        try:
            files = certificate.read_files(self._folder)
            if files != self._files:
                self._certificate = certificate.load(files, self._folder, self._namespace)
                self._files = files
        except errors.InputError as error:
            self._notify_once("unfit", str(error), now)
        if self._certificate is None:
            return False
        before, found = self._rotation, self._certificate
        after = advance_rotation(before, found, now) if before else start_rotation(found)
        self._rotation = after
        self._apply(before, after)
        if after.shown.expires_soon(now):
            left = max(0.0, (after.shown.not_after - now) / 3600)
            self._notify_once("end", f"the certificate in use ends in {left:.1f} hours", now)
        return True

    def _apply(self, before: Rotation | None, after: Rotation) -> None:
        if before is None or before.shown != after.shown:
            self._current_context = after.shown.server_context()
            _log.info("shows the certificate that ends at %d", after.shown.not_after)
        if before is None or before.authorities != after.authorities:
            self.client_context = tls.verifying_context(after.authorities)
            _log.info("takes certificates of %d authorities", len(after.trusted))

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            self.reload()

    def _select_context(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        if self._current_context is not None:
            connection.context = self._current_context

    def _notify_once(self, what: str, message: str, now: float) -> None:
        if now < self._notified_at.get(what, -REPEAT_SECONDS) + REPEAT_SECONDS:
            return
        self._notified_at[what] = now
        self._notify(message)


def create_tls(settings: SidecarSettings, notify: Notify) -> ReloadingTls | None:
    """As the settings ask for it; None: plain HTTP."""
    return (
        ReloadingTls(settings.tls_home, settings.namespace, notify) if settings.tls_home else None
    )


def explain_request_error(cause: Exception) -> str:
    """What kept a request from another sidecar, with what to do where TLS did."""
    if isinstance(cause, aiohttp.ClientConnectorCertificateError):
        refused = cause.certificate_error
        told = getattr(refused, "verify_message", "") or str(refused)
        return f"its certificate is refused ({told}): see rover-kf doctor, docs/security.md"
    if isinstance(cause, aiohttp.ClientConnectorSSLError):
        key = f"{names.PREFIX}tls.secret"
        return f"{cause}; all pods of a job need the same {key}: suspend and resume it"
    return str(cause)
