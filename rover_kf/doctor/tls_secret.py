# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The certificate of a job whose sidecars encrypt: there, fit, and taken by the controller."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.doctor import dry_run_objects
from rover_kf.doctor.api_query import Answer, Api, ask
from rover_kf.doctor.finding import Finding, unread
from rover_kf.sidecar.tls import certificate
from rover_kf.sidecar.tls.certificate import Certificate

CHECK, CONTROLLERS = "certificate", "certificate-controller"
AUTHORITIES = "rover-kf-sidecar-ca"
"""The ConfigMap that the controller mounts (manifests/base/controller)."""
_NONE = Answer()
_PAGE = "docs/security.md, TLS between sidecars"


@dataclasses.dataclass(frozen=True, slots=True)
class Encryption:
    """Objects that a job names, and the controller's."""

    namespace: str
    home: str
    """The controller's namespace."""
    name: str = ""
    """Of the Secret; empty: the job's sidecars do not encrypt."""
    secret: Answer = _NONE
    bundle: str = ""
    """Of the ConfigMap with more authorities, if one is named."""
    more: Answer = _NONE
    controllers: Answer = _NONE


def look(api: Api, namespace: str, home: str, job: Manifest) -> Encryption:
    """Ask for what an injected job mounts."""
    name, bundle = _mounted(job)
    if not name:
        return Encryption(namespace, home)
    inside = f"/api/v1/namespaces/{namespace}"
    path = f"/api/v1/namespaces/{home}/configmaps/{AUTHORITIES}"
    return Encryption(
        namespace,
        home,
        name,
        ask(api, f"{inside}/secrets/{name}", f"secret {name}"),
        bundle,
        ask(api, f"{inside}/configmaps/{bundle}", f"configmap {bundle}") if bundle else _NONE,
        ask(api, path, f"configmap {AUTHORITIES}"),
    )


def _mounted(job: Manifest) -> tuple[str, str]:
    """Names of the Secret and of the ConfigMap."""
    for spec in dry_run_objects.specs(job).values():
        for volume in spec["template"]["spec"].get("volumes") or ():
            if volume["name"] == names.TLS_VOLUME:
                parts = (volume.get("projected") or {}).get("sources") or ()
                named = {kind: part["name"] for source in parts for kind, part in source.items()}
                return named.get("secret", ""), named.get("configMap", "")
    return "", ""


def judge(seen: Encryption, now: float) -> Iterator[Finding]:
    """Nothing where nothing is encrypted."""
    if not seen.name:
        return
    if seen.secret.refusal or seen.more.refusal:
        why = seen.secret.refusal or seen.more.refusal
        yield unread(CHECK, why, f"get secrets and configmaps of {seen.namespace}")
        return
    found = _read(seen)
    if isinstance(found, Finding):
        yield found
        return
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(found.ends))
    what = f"secret {seen.name} has a certificate that the job's pods take, until {until}"
    if found.ends_soon(now):
        mend = f"see why it is not renewed: kubectl -n {seen.namespace} describe certificate"
        yield Finding(CHECK, "warning", what, mend)
    else:
        yield Finding(CHECK, "good", what)
    yield _taken(seen, found)


def _read(seen: Encryption) -> Certificate | Finding:
    for kind, name, answer in (
        ("secret", seen.name, seen.secret),
        ("configmap", seen.bundle, seen.more),
    ):
        if name and answer.found is None:
            what = f"there is no {kind} {name} in {seen.namespace}: the job's pods cannot start"
            return Finding(CHECK, "broken", what, f"make it as in {_PAGE}")
    more = ((seen.more.found or {}).get("data") or {}).get(names.TLS_AUTHORITIES, "")
    data = {key: _decoded(text) for key, text in _data(seen.secret).items()}
    data[names.TLS_MORE_AUTHORITIES] = more.encode()
    try:
        return certificate.of(data, pathlib.PurePath(seen.name), seen.namespace)
    except errors.InputError as error:
        what = f"secret {seen.name} in {seen.namespace}: {error}"
        return Finding(CHECK, "broken", what, f"make it as in {_PAGE}")


def _taken(seen: Encryption, found: Certificate) -> Finding:
    if seen.controllers.refusal:
        return unread(CONTROLLERS, seen.controllers.refusal, f"get configmaps of {seen.home}")
    told = _data(seen.controllers).get(names.TLS_AUTHORITIES, "")
    mend = (
        f"kubectl -n {seen.home} create configmap {AUTHORITIES} --from-file=ca.crt=FILE, with the "
        "certificates of all authorities in FILE; what is there already is to be edited"
    )
    if not told:
        what = (
            f"the controller is not told whose certificates to take: there is no configmap "
            f"{AUTHORITIES} with ca.crt in {seen.home}; it can neither read nor scale the job"
        )
        return Finding(CONTROLLERS, "broken", what, mend)
    refused = certificate.refusal(found, told, seen.namespace)
    if refused:
        what = f"the controller would refuse the certificate of secret {seen.name}: {refused}"
        return Finding(CONTROLLERS, "broken", what, mend)
    return Finding(CONTROLLERS, "good", "the controller takes the job's certificate")


def _data(answer: Answer) -> Mapping[str, Any]:
    return (answer.found or {}).get("data") or {}


def _decoded(text: object) -> bytes:
    try:
        return base64.b64decode(str(text or ""), validate=True)
    except binascii.Error:
        return b""
