# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The certificate of a job whose sidecars encrypt: there, fit, and taken by the controller."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.doctor import dry_run_objects
from rover_kf.doctor.api_query import ApiClient, ObjectResult, decode_base64, get
from rover_kf.doctor.finding import Finding, unknown
from rover_kf.sidecar.tls import certificate
from rover_kf.sidecar.tls.certificate import Certificate

CHECK, CONTROLLERS = "certificate", "certificate-controller"
AUTHORITIES = "rover-kf-sidecar-ca"
"""The ConfigMap that the controller mounts (manifests/base/controller)."""
_NONE = ObjectResult()
_PAGE = "docs/security.md, TLS between sidecars"


@dataclasses.dataclass(frozen=True, slots=True)
class TlsState:
    """Objects that a job names, and the controller's."""

    namespace: str
    controller_namespace: str
    name: str = ""
    """Of the Secret; empty: the job's sidecars do not encrypt."""
    secret: ObjectResult = _NONE
    bundle: str = ""
    """Of the ConfigMap with more authorities, if one is named."""
    extra_authorities: ObjectResult = _NONE
    controller_authorities: ObjectResult = _NONE


def collect(api: ApiClient, namespace: str, controller_namespace: str, job: Manifest) -> TlsState:
    """Ask for what an injected job mounts."""
    name, bundle = _mounted_names(job)
    if not name:
        return TlsState(namespace, controller_namespace)
    inside = f"/api/v1/namespaces/{namespace}"
    path = f"/api/v1/namespaces/{controller_namespace}/configmaps/{AUTHORITIES}"
    return TlsState(
        namespace,
        controller_namespace,
        name,
        get(api, f"{inside}/secrets/{name}", f"secret {name}"),
        bundle,
        get(api, f"{inside}/configmaps/{bundle}", f"configmap {bundle}") if bundle else _NONE,
        get(api, path, f"configmap {AUTHORITIES}"),
    )


def _mounted_names(job: Manifest) -> tuple[str, str]:
    """Names of the Secret and of the ConfigMap."""
    for spec in dry_run_objects.replica_specs(job).values():
        for volume in spec["template"]["spec"].get("volumes") or ():
            if volume["name"] == names.TLS_VOLUME:
                parts = (volume.get("projected") or {}).get("sources") or ()
                named = {kind: part["name"] for source in parts for kind, part in source.items()}
                return named.get("secret", ""), named.get("configMap", "")
    return "", ""


def check(observed: TlsState, now: float) -> Iterator[Finding]:
    """Nothing where nothing is encrypted."""
    if not observed.name:
        return
    if observed.secret.denial or observed.extra_authorities.denial:
        why = observed.secret.denial or observed.extra_authorities.denial
        yield unknown(CHECK, why, f"get secrets and configmaps of {observed.namespace}")
        return
    found = _read_certificate(observed)
    if isinstance(found, Finding):
        yield found
        return
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(found.not_after))
    what = f"secret {observed.name} has a certificate that the job's pods take, until {until}"
    if found.expires_soon(now):
        mend = f"see why it is not renewed: kubectl -n {observed.namespace} describe certificate"
        yield Finding(CHECK, "warning", what, mend)
    else:
        yield Finding(CHECK, "good", what)
    yield _check_controller_trust(observed, found)


def _read_certificate(observed: TlsState) -> Certificate | Finding:
    for kind, name, answer in (
        ("secret", observed.name, observed.secret),
        ("configmap", observed.bundle, observed.extra_authorities),
    ):
        if name and answer.value is None:
            what = f"there is no {kind} {name} in {observed.namespace}: the job's pods cannot start"
            return Finding(CHECK, "broken", what, f"make it as in {_PAGE}")
    more = ((observed.extra_authorities.value or {}).get("data") or {}).get(
        names.TLS_AUTHORITIES, ""
    )
    data = {key: decode_base64(text) for key, text in _get_data(observed.secret).items()}
    data[names.TLS_MORE_AUTHORITIES] = more.encode()
    try:
        return certificate.load(data, pathlib.PurePath(observed.name), observed.namespace)
    except errors.InputError as error:
        what = f"secret {observed.name} in {observed.namespace}: {error}"
        return Finding(CHECK, "broken", what, f"make it as in {_PAGE}")


def _check_controller_trust(observed: TlsState, job_certificate: Certificate) -> Finding:
    if denial := observed.controller_authorities.denial:
        return unknown(CONTROLLERS, denial, f"get configmaps of {observed.controller_namespace}")
    told = _get_data(observed.controller_authorities).get(names.TLS_AUTHORITIES, "")
    mend = (
        f"kubectl -n {observed.controller_namespace} create configmap {AUTHORITIES} "
        "--from-file=ca.crt=FILE, with the certificates of all authorities in FILE; what is there "
        "already is to be edited"
    )
    if not told:
        what = (
            f"the controller is not told whose certificates to take: there is no configmap "
            f"{AUTHORITIES} with ca.crt in {observed.controller_namespace}; it can neither "
            "read nor scale the job"
        )
        return Finding(CONTROLLERS, "broken", what, mend)
    refused = certificate.validation_error(job_certificate, told, observed.namespace)
    if refused:
        what = f"the controller would refuse the certificate of secret {observed.name}: {refused}"
        return Finding(CONTROLLERS, "broken", what, mend)
    return Finding(CONTROLLERS, "good", "the controller takes the job's certificate")


def _get_data(answer: ObjectResult) -> Mapping[str, Any]:
    return (answer.value or {}).get("data") or {}
