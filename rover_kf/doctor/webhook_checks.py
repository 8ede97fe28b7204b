# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Our webhook: its configuration, its certificate, the way to it, and whether it injects."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf import errors
from rover_kf.doctor.api_query import (
    ApiClient,
    ListResult,
    ObjectResult,
    decode_base64,
    get,
    list_all,
)
from rover_kf.doctor.finding import Finding, unknown
from rover_kf.injection.inject import is_injected
from rover_kf.webhook.certificates import Certificates

CHECK = "webhook"
WEBHOOK, HOOK, NAMESPACE = "rover-kf-webhook", "inject.rover-kf.io", "rover-kf-system"
"""As manifests/base/webhook names them."""
INSTALL = "kubectl apply -k manifests/overlays/standalone"
_RESTART = "kubectl -n {} rollout restart deploy/rover-kf-controller"


@dataclasses.dataclass(frozen=True, slots=True)
class WebhookState:
    """What is to be seen of it."""

    configuration: ObjectResult
    secret: ObjectResult
    """With its certificate; the controller makes it."""
    service: ObjectResult
    endpoints: ListResult
    namespace_object: ObjectResult
    """The namespace that jobs go to."""
    labelled_dry_run: ObjectResult
    """What the server would store of a labelled job that is not patched."""

    @property
    def namespace(self) -> str:
        """Where the webhook's Service is, or should be."""
        return webhook_namespace(self.configuration)


def webhook_namespace(configuration: ObjectResult) -> str:
    """Namespace of the Service that a webhook configuration leads to, else the usual one."""
    service = _hook(configuration).get("clientConfig", {}).get("service") or {}
    return str(service.get("namespace") or NAMESPACE)


def collect(
    api: ApiClient, namespace_object: ObjectResult, labelled_dry_run: ObjectResult
) -> WebhookState:
    """Ask for the configuration and what it leads to."""
    group = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    configuration = get(api, f"{group}/{WEBHOOK}", "webhook configuration")
    inside = f"/api/v1/namespaces/{webhook_namespace(configuration)}"
    slices = (
        f"/apis/discovery.k8s.io/v1/namespaces/{webhook_namespace(configuration)}/endpointslices"
    )
    query = {"labelSelector": f"kubernetes.io/service-name={WEBHOOK}"}
    return WebhookState(
        configuration,
        get(api, f"{inside}/secrets/{WEBHOOK}", f"secret {WEBHOOK}"),
        get(api, f"{inside}/services/{WEBHOOK}", f"service {WEBHOOK}"),
        list_all(api, slices, f"endpoints of {WEBHOOK}", query),
        namespace_object,
        labelled_dry_run,
    )


def check(observed: WebhookState, now: float) -> Iterator[Finding]:
    """The first thing on the way to the webhook that is wrong; else whether it injects.

    What is wrong is told even if a job was injected just now: a connection that is open already
    outlives the way to it.
    """
    if observed.configuration.denial:
        yield _check_injection(observed) or unknown(
            CHECK, observed.configuration.denial, "read mutatingwebhookconfigurations"
        )
        return
    wrong = _check_configuration(observed) or _check_certificate(observed, now)
    wrong = wrong or _check_endpoints(observed)
    yield wrong or _check_injection(observed) or _injection_failure(observed)


def _check_configuration(observed: WebhookState) -> Finding | None:
    hook = _hook(observed.configuration)
    if observed.configuration.value is None:
        what = f"there is no MutatingWebhookConfiguration {WEBHOOK}: labelled jobs stay plain"
        mend = f"{INSTALL}; or patch each job by rover-kf patch or rover-kf submit"
        return Finding(CHECK, "broken", what, mend)
    if not hook:
        what = f"{WEBHOOK} has no webhook {HOOK}"
        return Finding(CHECK, "broken", what, INSTALL)
    labels = ((observed.namespace_object.value or {}).get("metadata") or {}).get("labels") or {}
    if observed.namespace_object.value is not None and not selector_matches(
        hook.get("namespaceSelector") or {}, labels
    ):
        what = f"{HOOK} leaves this namespace out: its namespaceSelector does not fit its labels"
        mend = f"use another namespace, or change the selector of {WEBHOOK}"
        return Finding(CHECK, "broken", what, mend)
    return None


def _check_certificate(observed: WebhookState, now: float) -> Finding | None:
    bundle = decode_base64(
        (_hook(observed.configuration).get("clientConfig") or {}).get("caBundle")
    )
    restart = _RESTART.format(observed.namespace)
    if not bundle:
        what = f"the caBundle of {HOOK} is empty: the controller has not filled it in"
        return Finding(CHECK, "broken", what, f"see the finding controller, then {restart}")
    if observed.secret.denial:
        return None
    if observed.secret.value is None:
        what = f"there is no secret {WEBHOOK} in {observed.namespace}: nothing serves the webhook"
        return Finding(CHECK, "broken", what, restart)
    data = observed.secret.value.get("data") or {}
    try:
        held = Certificates.from_data({key: decode_base64(value) for key, value in data.items()})
    except errors.ProtocolError as error:
        what = f"secret {WEBHOOK} in {observed.namespace}: {error}"
        mend = f"kubectl -n {observed.namespace} delete secret {WEBHOOK}; {restart}"
        return Finding(CHECK, "broken", what, mend)
    if bundle != held.authority:
        what = f"the caBundle of {HOOK} is not the authority of secret {WEBHOOK}: calls are refused"
        mend = f"{restart}; the controller also puts it right by itself within five minutes"
        return Finding(CHECK, "broken", what, mend)
    if held.expires <= now:
        what = f"the certificate in secret {WEBHOOK} has ended"
        mend = f"kubectl -n {observed.namespace} delete secret {WEBHOOK}; {restart}"
        return Finding(CHECK, "broken", what, mend)
    return None


def _check_endpoints(observed: WebhookState) -> Finding | None:
    if not observed.service.denial and observed.service.value is None:
        what = f"there is no service {WEBHOOK} in {observed.namespace}"
        return Finding(CHECK, "broken", what, INSTALL)
    ready = [
        endpoint
        for part in observed.endpoints.items
        for endpoint in part.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready", True)
    ]
    if not observed.endpoints.denial and not ready:
        what = f"service {WEBHOOK} in {observed.namespace} leads to no pod that is ready"
        mend = (
            "see the finding controller; if that is good, the service's selector fits no pod: "
            f"{INSTALL}"
        )
        return Finding(CHECK, "broken", what, mend)
    return None


def _check_injection(observed: WebhookState) -> Finding | None:
    """Good if a labelled job came back injected."""
    if observed.labelled_dry_run.value is None:
        return None
    if not is_injected(observed.labelled_dry_run.value):
        return None
    return Finding(CHECK, "good", "a labelled job is injected at admission")


def _injection_failure(observed: WebhookState) -> Finding:
    if observed.labelled_dry_run.value is None and HOOK not in observed.labelled_dry_run.denial:
        why = observed.labelled_dry_run.denial or "this cluster has no PyTorchJobs"
        what = f"its configuration is in order; whether it injects could not be tried: {why}"
        return Finding(CHECK, "unknown", what, "mend the other findings first")
    why = observed.labelled_dry_run.denial or "the API server could not call it, or it refused"
    mend = (
        f"read the controller's log (kubectl -n {observed.namespace} logs deploy/"
        "rover-kf-controller); let the API server reach its port 9443 (network policies, firewalls "
        "of the control plane)"
    )
    return Finding(CHECK, "broken", f"a labelled job is not injected: {why}", mend)


def selector_matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
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


def _hook(configuration: ObjectResult) -> Mapping[str, Any]:
    hooks = (configuration.value or {}).get("webhooks") or ()
    return next((hook for hook in hooks if hook["name"] == HOOK), {})
