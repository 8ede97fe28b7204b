# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The review of a job at the API server's door: AdmissionReview in, AdmissionReview out; pure.

- Created: a labelled job is injected, a wrong one refused with the error's own sentence.
- Updated: a job that is injected already is injected anew, since an apply of the user's own file
  replaces arrays and would strip it; the result is the job as it was. One that is not (it was
  created while no webhook answered) stays as it is: its running pods know nothing of us.
- Being deleted, unlabelled, or of another operation: allowed untouched.

``kubectl apply`` compares the file with the live object, not with the file applied before: a job
that was scaled from 2 to 3 would be set back to 2 by an unchanged file. Under scaling.mode auto the
controller owns that number, and so it does a limit that it has raised. A changed file, and
any other way of writing the number, is obeyed.
Server-side apply needs none of this: there the API server itself reports the conflict.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.injection import inject
from rover_kf.injection.limits.manifest_cpu import CPU
from rover_kf.injection.limits.manifest_memory import MEMORY
from rover_kf.injection.limits.raised_limit import ResourceLimit
from rover_kf.injection.settings import InjectionSettings
from rover_kf.injection.validation.validate import validate
from rover_kf.job_kinds.job_spec import JobSpec
from rover_kf.job_kinds.registry import kind_of

PATH = "/mutate"
MAX_BODY = 8 << 20
"""Bytes: an UPDATE carries the job twice, and an object may be 1.5 MiB."""
_INVALID = 422
_PATCHED = ("labels", "annotations")
_NOT_INJECTED = (
    "was created without rover-kf and stays so; delete it and create it again to have it"
)
APPLY_MANAGER = "kubectl-client-side-apply"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SCALED = ("worker", "ps")

_log = logging.getLogger(__name__)


def is_reapplied(request: Mapping[str, Any]) -> bool:
    """Whether an UPDATE is ``kubectl apply`` of the file that was applied before."""
    options = request.get("options")
    if not isinstance(options, Mapping) or options.get("fieldManager") != APPLY_MANAGER:
        return False
    new, old = (_last_applied(request.get(key) or {}) for key in ("object", "oldObject"))
    return new is not None and new == old


def preserve_replicas(
    job: Manifest, old: Manifest, defaults: Mapping[str, str] | None
) -> tuple[Manifest, tuple[str, ...]]:
    """The job with the old numbers of replicas that rover-kf scales, and what to tell its owner.

    Raises:
        InputError: the job is wrong.
    """
    policy, job_kind = validate(job, defaults=defaults), kind_of(job)
    before = {item.kind: item for item in job_kind.replicas(old)}
    if policy.scaling.mode != "auto" or (not job_kind.elastic and "ps" not in before):
        return job, ()
    specs, told = dict(job["spec"][job_kind.specs]), list[str]()
    for asked in job_kind.replicas(job):
        now = before.get(asked.kind)
        if asked.kind not in _SCALED or now is None or now.replicas == asked.replicas:
            continue
        specs[asked.key] = {**asked.spec, "replicas": now.replicas}
        told.append(
            f"{asked.path}.replicas stays {now.replicas}: rover-kf scales this job (scaling.mode "
            "auto); to set it yourself change the file or use kubectl scale"
        )
    return {**job, "spec": {**job["spec"], job_kind.specs: specs}}, tuple(told)


def preserve_limits(job: Manifest, old: Manifest) -> Manifest:
    """The job with the limits that rover-kf has raised, where it states those before."""
    for limit in (MEMORY, CPU):
        job = _preserve(limit, job, old)
    return job


def _preserve(limit: ResourceLimit, job: Manifest, old: Manifest) -> Manifest:
    raised, job_kind = limit.raised(old), kind_of(job)
    before = {item.key: item for item in job_kind.replicas(old)}
    specs = dict(job["spec"][job_kind.specs])
    for item in job_kind.replicas(job):
        known = raised.get(item.key)
        if known is None or item.key not in before:
            continue
        had = limit.limit_of(job_kind.trainer(before[item.key]))
        if had == known.limit and limit.limit_of(job_kind.trainer(item)) == known.stated:
            specs[item.key] = limit.replica(item, job_kind, known.limit)
    return {**job, "spec": {**job["spec"], job_kind.specs: specs}}


def _last_applied(job: Mapping[str, Any]) -> str | None:
    metadata = job.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    found = annotations.get(LAST_APPLIED) if isinstance(annotations, Mapping) else None
    return None if found is None else str(found)


def make_app(
    settings: InjectionSettings, read_defaults: Callable[[], Mapping[str, str]]
) -> web.Application:
    """Return an application that answers POST /mutate.

    Policy defaults are read for each review, so that an edit takes effect.
    """

    async def mutate(request: web.Request) -> web.Response:
        try:
            posted = json.loads(await request.read())
            answer = review(posted, settings=settings, defaults=read_defaults())
        except (ValueError, errors.ProtocolError) as cause:
            _log.warning("refused a request that is no AdmissionReview: %s", cause)
            return web.json_response({"error": "ProtocolError", "message": str(cause)}, status=400)
        response = answer["response"]
        if not response["allowed"]:
            _log.info("refused: %s", response["status"]["message"])
        return web.json_response(answer)

    app = web.Application(client_max_size=MAX_BODY)
    app.router.add_post(PATH, mutate)
    return app


def review(
    admission_review: Mapping[str, Any],
    *,
    settings: InjectionSettings,
    defaults: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Answer one AdmissionReview (admission.k8s.io/v1), as the API server posted it.

    Defaults are the policy for what a job's annotations do not state.

    Raises:
        ProtocolError: it is no AdmissionReview with a request.
    """
    known = isinstance(admission_review, Mapping)
    request = admission_review.get("request") if known else None
    if not isinstance(request, Mapping) or "uid" not in request:
        raise errors.ProtocolError("not an AdmissionReview: it has no request with a uid")
    response = {"uid": request["uid"], **_respond(request, settings, defaults)}
    return {
        "apiVersion": admission_review.get("apiVersion", "admission.k8s.io/v1"),
        "kind": "AdmissionReview",
        "response": response,
    }


def _respond(
    request: Mapping[str, Any], settings: InjectionSettings, defaults: Mapping[str, str] | None
) -> dict[str, Any]:
    job = _mapping(request.get("object"))
    if not _is_supported(job) or request.get("operation") not in ("CREATE", "UPDATE"):
        return {"allowed": True}
    wanted, warnings, source = job, tuple[str, ...](), _name(request)
    try:
        if request["operation"] == "UPDATE":
            old = _mapping(request.get("oldObject"))
            if not _was_injected(old):
                warning = f"{job['metadata'].get('name')} {_NOT_INJECTED}"
                return {"allowed": True, "warnings": [warning]}
            settings = inject.pin_image(settings, JobSpec.parse(old))
            if is_reapplied(request):
                wanted, warnings = preserve_replicas(job, old, defaults)
                wanted = preserve_limits(wanted, old)
        injected = inject.inject(wanted, settings=settings, defaults=defaults, source=source)
        if request["operation"] == "UPDATE":
            kind_of(job).check_update(old, wanted, source)
        warnings += tuple(event.message for event in injected.warnings)
    except errors.InputError as refusal:
        return {"allowed": False, "status": {"code": _INVALID, "message": str(refusal)}}
    response: dict[str, Any] = {"allowed": True}
    if warnings:
        response["warnings"] = list(warnings)
    if operations := patch(job, injected.manifest):
        text = json.dumps(operations, separators=(",", ":"))
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(text.encode()).decode()
    return response


def patch(before: Manifest, after: Manifest) -> list[dict[str, Any]]:
    """JSON Patch (RFC 6902) from one manifest to the other.

    Injection changes labels, annotations and spec alone, so each of them is replaced whole:
    ``add`` replaces a member that is there.
    """
    operations = [
        {"op": "add", "path": f"/metadata/{key}", "value": after["metadata"][key]}
        for key in _PATCHED
        if before["metadata"].get(key) != after["metadata"].get(key)
    ]
    if before["spec"] != after["spec"]:
        operations.append({"op": "add", "path": "/spec", "value": after["spec"]})
    return operations


def _is_supported(job: Mapping[str, Any]) -> bool:
    metadata = _mapping(job.get("metadata"))
    labelled = _mapping(metadata.get("labels")).get(names.INJECT_LABEL) == "true"
    return labelled and "deletionTimestamp" not in metadata


def _was_injected(old: Mapping[str, Any]) -> bool:
    try:
        JobSpec.parse(old, source="the job as it was")
    except errors.ManifestError:
        return False  # no webhook of ours has seen it
    return inject.is_injected(old)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _name(request: Mapping[str, Any]) -> str:
    metadata = request["object"]["metadata"]
    name = metadata.get("name") or metadata.get("generateName", "")
    return f"{request['object'].get('kind')} {request.get('namespace', '')}/{name}"
