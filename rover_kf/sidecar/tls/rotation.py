# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which certificate is shown, and whose are taken, while pods get new ones at different moments.

A Secret that changes reaches each pod when its kubelet looks again. Where only the certificate is
new that is no matter. Where its authority is new, too, a pod that has not got it yet would refuse
who shows the new one, and a pod that has it who shows the old one. So a new authority is trusted at
once, but nothing of its is shown until every pod has had the time to get it; and an old one stays
trusted until every pod has had the time to show the new one.
"""

from __future__ import annotations

import dataclasses
import math

from rover_kf.sidecar.tls.certificate import Certificate

SPREAD_SECONDS = 180.0
"""Within which all kubelets have brought a changed Secret to their pods: they look once a minute,
and may have kept what they saw for another."""
KEPT_SECONDS = 600.0
"""That an authority is still trusted which is not mounted any more: others get the change later,
and show the old certificate for SPREAD_SECONDS from then on."""


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


def start(certificate: Certificate) -> Rotation:
    """What a sidecar that starts has: nothing was shown by it before."""
    return Rotation(certificate, tuple(Trusted(one, -math.inf) for one in certificate.authorities))


def advance(rotation: Rotation, certificate: Certificate, now: float) -> Rotation:
    """Follow the newest valid certificate at a Unix time; the same one again changes nothing."""
    mounted = set(certificate.authorities)
    known = {one.authority for one in rotation.trusted}
    trusted = [
        _update_expiry(one, now, mounted=one.authority in mounted) for one in rotation.trusted
    ]
    trusted += [Trusted(one, now) for one in certificate.authorities if one not in known]
    kept = tuple(one for one in trusted if one.until > now)
    newest = max(one.since for one in kept if one.authority in mounted)
    ready = now >= newest + SPREAD_SECONDS or rotation.shown.not_after <= now
    return Rotation(certificate if ready else rotation.shown, kept)


def _update_expiry(trusted: Trusted, now: float, *, mounted: bool) -> Trusted:
    if mounted:
        return dataclasses.replace(trusted, until=math.inf)
    return (
        trusted
        if trusted.until < math.inf
        else dataclasses.replace(trusted, until=now + KEPT_SECONDS)
    )
