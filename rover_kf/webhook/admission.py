# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The review of a job at the API server's door: AdmissionReview in, AdmissionReview out; pure.

- Created: a labelled job is injected, a wrong one refused with the error's own sentence.
- Updated: a job that is injected already is injected anew, since an apply of the user's own file
  replaces arrays and would strip it; the result is the job as it was. One that is not (it was
  created while no webhook answered) stays as it is: its running pods know nothing of us.
- Being deleted, unlabelled, or of another operation: allowed untouched.
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
from rover_kf.injection.adapters import TENSORFLOW, adapter_for
from rover_kf.injection.settings import InjectionSettings
from rover_kf.injection.validation import schema, tfjob_rules
from rover_kf.webhook import reapply

PATH = "/mutate"


MAX_BODY = 8 << 20


"""Bytes: an UPDATE carries the job twice, and an object may be 1.5 MiB."""


_log = logging.getLogger(__name__)


def make_app(
    settings: InjectionSettings, read_defaults: Callable[[], Mapping[str, str]]
) -> web.Application:
    """An application that answers POST /mutate.

    Args:
        settings: images and accounts of this place.
        read_defaults: policy defaults, read for each review so that an edit takes effect.
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


_INVALID = 422


_PATCHED = ("labels", "annotations")


def review(
    admission_review: Mapping[str, Any],
    *,
    settings: InjectionSettings,
    defaults: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Answer one AdmissionReview (admission.k8s.io/v1).

    Args:
        admission_review: as the API server posted it.
        settings: images and accounts of this place.
        defaults: policy for what a job's annotations do not say.

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
                return {"allowed": True, "warnings": [_not_injected_message(job)]}
            settings = inject.pin_image(settings, old, adapter_for(old))
            if reapply.is_reapplied(request):
                wanted, warnings = reapply.preserve_replicas(job, old, defaults)
                wanted = reapply.preserve_limits(wanted, old)
        injected = inject.inject(wanted, settings=settings, defaults=defaults, source=source)
        if request["operation"] == "UPDATE" and adapter_for(job) is TENSORFLOW:
            tfjob_rules.check_update(old, wanted, source)
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
        schema.check_schema(old, adapter_for(old), "the job as it was")
    except errors.ManifestError:
        return False  # no webhook of ours has seen it
    return inject.is_injected(old)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _name(request: Mapping[str, Any]) -> str:
    metadata = request["object"]["metadata"]
    name = metadata.get("name") or metadata.get("generateName", "")
    return f"{request['object'].get('kind')} {request.get('namespace', '')}/{name}"


def _not_injected_message(job: Mapping[str, Any]) -> str:
    return (
        f"{job['metadata'].get('name')} was created without rover-kf and stays so; "
        "delete it and create it again to have it"
    )
