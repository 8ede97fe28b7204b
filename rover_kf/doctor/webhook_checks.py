# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Our webhook: its configuration, its certificate, the way to it, and whether it injects."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf import errors
from rover_kf.doctor.api_query import Answer, Api, Listing, ask, ask_all
from rover_kf.doctor.finding import Finding, unread
from rover_kf.injection.inject import is_injected
from rover_kf.webhook.certificates import Certificates

CHECK = "webhook"
WEBHOOK, HOOK, NAMESPACE = "rover-kf-webhook", "inject.rover-kf.io", "rover-kf-system"
"""As manifests/base/webhook names them."""
INSTALL = "kubectl apply -k manifests/overlays/standalone"
_RESTART = "kubectl -n {} rollout restart deploy/rover-kf-controller"


@dataclasses.dataclass(frozen=True, slots=True)
class Admission:
    """What is to be seen of it."""

    configuration: Answer
    secret: Answer
    """With its certificate; the controller makes it."""
    service: Answer
    endpoints: Listing
    place: Answer
    """The namespace that jobs go to."""
    tried: Answer
    """What the server would store of a labelled job that is not patched."""

    @property
    def namespace(self) -> str:
        """Where the webhook's Service is, or should be."""
        return home(self.configuration)


def home(configuration: Answer) -> str:
    """Namespace of the Service that a webhook configuration leads to, else the usual one."""
    service = _hook(configuration).get("clientConfig", {}).get("service") or {}
    return str(service.get("namespace") or NAMESPACE)


def look(api: Api, place: Answer, tried: Answer) -> Admission:
    """Ask for the configuration and what it leads to."""
    group = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    configuration = ask(api, f"{group}/{WEBHOOK}", "webhook configuration")
    inside = f"/api/v1/namespaces/{home(configuration)}"
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{home(configuration)}/endpointslices"
    query = {"labelSelector": f"kubernetes.io/service-name={WEBHOOK}"}
    return Admission(
        configuration,
        ask(api, f"{inside}/secrets/{WEBHOOK}", f"secret {WEBHOOK}"),
        ask(api, f"{inside}/services/{WEBHOOK}", f"service {WEBHOOK}"),
        ask_all(api, slices, f"endpoints of {WEBHOOK}", query),
        place,
        tried,
    )


def judge(seen: Admission, now: float) -> Iterator[Finding]:
    """The first thing on the way to the webhook that is wrong; else whether it injects.

    What is wrong is told even if a job was injected just now: a connection that is open already
    outlives the way to it.
    """
    if seen.configuration.refusal:
        yield _injects(seen) or unread(
            CHECK, seen.configuration.refusal, "read mutatingwebhookconfigurations"
        )
        return
    wrong = _configured(seen) or _trusted(seen, now) or _reached(seen)
    yield wrong or _injects(seen) or _silent(seen)


def _configured(seen: Admission) -> Finding | None:
    hook = _hook(seen.configuration)
    if seen.configuration.found is None:
        what = f"there is no MutatingWebhookConfiguration {WEBHOOK}: labelled jobs stay plain"
        mend = f"{INSTALL}; or patch each job by rover-kf patch or rover-kf submit"
        return Finding(CHECK, "broken", what, mend)
    if not hook:
        what = f"{WEBHOOK} has no webhook {HOOK}"
        return Finding(CHECK, "broken", what, INSTALL)
    labels = ((seen.place.found or {}).get("metadata") or {}).get("labels") or {}
    if seen.place.found is not None and not selects(hook.get("namespaceSelector") or {}, labels):
        what = f"{HOOK} leaves this namespace out: its namespaceSelector does not fit its labels"
        mend = f"use another namespace, or change the selector of {WEBHOOK}"
        return Finding(CHECK, "broken", what, mend)
    return None


def _trusted(seen: Admission, now: float) -> Finding | None:
    bundle = _decoded((_hook(seen.configuration).get("clientConfig") or {}).get("caBundle"))
    restart = _RESTART.format(seen.namespace)
    if not bundle:
        what = f"the caBundle of {HOOK} is empty: the controller has not filled it in"
        return Finding(CHECK, "broken", what, f"see the finding controller, then {restart}")
    if seen.secret.refusal:
        return None
    if seen.secret.found is None:
        what = f"there is no secret {WEBHOOK} in {seen.namespace}: nothing serves the webhook"
        return Finding(CHECK, "broken", what, restart)
    data = seen.secret.found.get("data") or {}
    try:
        held = Certificates.from_data({key: _decoded(value) for key, value in data.items()})
    except errors.MessageError as error:
        what = f"secret {WEBHOOK} in {seen.namespace}: {error}"
        mend = f"kubectl -n {seen.namespace} delete secret {WEBHOOK}; {restart}"
        return Finding(CHECK, "broken", what, mend)
    if bundle != held.authority:
        what = f"the caBundle of {HOOK} is not the authority of secret {WEBHOOK}: calls are refused"
        mend = f"{restart}; the controller also puts it right by itself within five minutes"
        return Finding(CHECK, "broken", what, mend)
    if held.expires <= now:
        what = f"the certificate in secret {WEBHOOK} has ended"
        mend = f"kubectl -n {seen.namespace} delete secret {WEBHOOK}; {restart}"
        return Finding(CHECK, "broken", what, mend)
    return None


def _reached(seen: Admission) -> Finding | None:
    if not seen.service.refusal and seen.service.found is None:
        what = f"there is no service {WEBHOOK} in {seen.namespace}"
        return Finding(CHECK, "broken", what, INSTALL)
    ready = [
        endpoint
        for part in seen.endpoints.items
        for endpoint in part.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready", True)
    ]
    if not seen.endpoints.refusal and not ready:
        what = f"service {WEBHOOK} in {seen.namespace} leads to no pod that is ready"
        mend = (
            "see the finding controller; if that is good, the service's selector fits no pod: "
            f"{INSTALL}"
        )
        return Finding(CHECK, "broken", what, mend)
    return None


def _injects(seen: Admission) -> Finding | None:
    """Good if a labelled job came back injected."""
    if seen.tried.found is None:
        return None
    if not is_injected(seen.tried.found):
        return None
    return Finding(CHECK, "good", "a labelled job is injected at admission")


def _silent(seen: Admission) -> Finding:
    if seen.tried.found is None and HOOK not in seen.tried.refusal:
        why = seen.tried.refusal or "this cluster has no PyTorchJobs"
        what = f"its configuration is in order; whether it injects could not be tried: {why}"
        return Finding(CHECK, "unknown", what, "mend the other findings first")
    why = seen.tried.refusal or "the API server could not call it, or it refused"
    mend = (
        f"read the controller's log (kubectl -n {seen.namespace} logs deploy/rover-kf-controller); "
        "let the API server reach its port 9443 (network policies, firewalls of the control plane)"
    )
    return Finding(CHECK, "broken", f"a labelled job is not injected: {why}", mend)


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector fits."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for rule in selector.get("matchExpressions") or ():
        value, allowed = labels.get(rule["key"]), rule.get("values") or ()
        fits = {
            "In": value in allowed,
            "NotIn": value not in allowed,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not fits[rule["operator"]]:
            return False
    return True


def _hook(configuration: Answer) -> Mapping[str, Any]:
    hooks = (configuration.found or {}).get("webhooks") or ()
    return next((hook for hook in hooks if hook["name"] == HOOK), {})


def _decoded(text: object) -> bytes:
    try:
        return base64.b64decode(str(text or ""), validate=True)
    except binascii.Error:
        return b""
