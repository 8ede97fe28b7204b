# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Our controller: running, and with the rights that its manifests give it.

There is one for the cluster, or one for a namespace alone (manifests/overlays/namespaced), which
has rights there alone and needs no others. Without a webhook jobs are patched where they are
submitted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.doctor import webhook_checks
from rover_kf.doctor.api_query import ApiClient, ListResult, list_all
from rover_kf.doctor.finding import Finding, unknown
from rover_kf.doctor.rbac import MissingPermissions, Permission, permissions, review_account
from rover_kf.doctor.webhook_checks import INSTALL, WebhookState
from rover_kf.injection.inject import is_injected
from rover_kf.job_kinds import registry

CHECK, PERMISSIONS = "controller", "controller-rights"
PART_OF_SELECTOR = "app.kubernetes.io/name=rover-kf"
CONTROLLER_SELECTOR = f"{PART_OF_SELECTOR},app.kubernetes.io/component=controller"
DEPLOYMENT = "rover-kf-controller"
INSTALL_NAMESPACED = "kubectl apply -k manifests/overlays/namespaced"
CONSEQUENCE = (
    "; until then jobs that run go on, recover and checkpoint, but nothing scales or is recorded"
)

_LOST_POD_PERMISSION = Permission("patch", "", "pods", "status")
"""Of nodes that are gone, which who may not read nodes does not know."""
REQUIRED = permissions(
    *((kind.group, kind.plural, "get list watch patch") for kind in registry.job_kinds()),
    ("", "pods", "list watch delete"),
    ("", "pods/resize", "patch"),
    ("", "pods/status", "patch"),
    ("", "nodes", "get list watch"),
    ("", "events", "create"),
    ("", "resourcequotas", "list"),
    ("autoscaling", "horizontalpodautoscalers", "list"),
    ("authentication.k8s.io", "tokenreviews", "create"),
    ("authorization.k8s.io", "subjectaccessreviews", "create"),
)
"""Of its ClusterRole, but for what names one object (manifests/base/rbac)."""

_CLUSTER_SCOPED = ("nodes", "tokenreviews", "subjectaccessreviews")
REQUIRED_NAMESPACED = tuple(
    right
    for right in REQUIRED
    if right.resource not in _CLUSTER_SCOPED and right != _LOST_POD_PERMISSION
)
"""Of its Role in one namespace alone (manifests/overlays/namespaced)."""


@dataclasses.dataclass(frozen=True, slots=True)
class ControllerState:
    """What is to be seen of it."""

    namespace: str
    deployments: ListResult
    pods: ListResult
    rights: MissingPermissions
    single_namespace: bool = False
    """Whether it looks after this one namespace, with rights there alone."""

    @property
    def account(self) -> str:
        """Its service account as ``namespace:name``."""
        return f"{self.namespace}:{_account(self.deployments)}"


def collect(api: ApiClient, namespace: str, controller_namespace: str) -> ControllerState:
    """Read its deployment, its pods and what its account may do.

    A controller of one namespace alone is where its jobs go; the cluster's is elsewhere.
    """
    deployments = _deployments(api, namespace)
    mine = tuple(
        item for item in deployments.items if watched_namespace(item, namespace) == namespace
    )
    alone = bool(mine)
    where, needed = (namespace, REQUIRED_NAMESPACED) if alone else (controller_namespace, REQUIRED)
    if alone:
        deployments = ListResult(mine)
    elif controller_namespace != namespace:
        deployments = _deployments(api, controller_namespace)
    place, selector = f"/api/v1/namespaces/{where}/pods", {"labelSelector": CONTROLLER_SELECTOR}
    pods = list_all(api, place, f"pods of {where}", selector)
    account = f"system:serviceaccount:{where}:{_account(deployments)}"
    found = review_account(api, account, needed, namespace if alone else "")
    return ControllerState(where, deployments, pods, found, alone)


def _deployments(api: ApiClient, namespace: str) -> ListResult:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    return list_all(api, path, f"deployments of {namespace}", {"labelSelector": PART_OF_SELECTOR})


def watched_namespace(deployment: Mapping[str, Any], namespace: str) -> str:
    """Return the namespace of a deployment's variable, where the pod's may be meant; empty: all."""
    for container in deployment["spec"]["template"]["spec"]["containers"]:
        for variable in container.get("env") or ():
            if variable["name"] == names.ENV_WATCH_NAMESPACE:
                own = "fieldRef" in (variable.get("valueFrom") or {})
                return namespace if own else str(variable.get("value") or "")
    return ""


def _account(deployments: ListResult) -> str:
    for deployment in deployments.items:
        named = deployment["spec"]["template"]["spec"].get("serviceAccountName")
        return str(named or "default")
    return DEPLOYMENT


def check(observed: ControllerState) -> Iterator[Finding]:
    """Whether it runs; then what it may not do."""
    found, place = observed.deployments, f"-n {observed.namespace} deploy/{DEPLOYMENT}"
    if found.denial:
        yield unknown(CHECK, found.denial, f"list deployments of {observed.namespace}")
    elif not found.items:
        what = f"there is no controller in {observed.namespace}"
        yield Finding(CHECK, "broken", what, f"{INSTALL}{CONSEQUENCE}")
        return
    else:
        yield _check_running(found.items[0], observed, place)
    yield _check_permissions(observed)


def _check_running(
    deployment: Mapping[str, Any], observed: ControllerState, target: str
) -> Finding:
    told = f", for the jobs of {observed.namespace} alone" if observed.single_namespace else ""
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    if (deployment.get("status") or {}).get("availableReplicas"):
        return Finding(CHECK, "good", f"{image} runs{told}")
    if not deployment["spec"].get("replicas", 1):
        mend = f"kubectl scale {target} --replicas=1{CONSEQUENCE}"
        return Finding(CHECK, "broken", "the controller is scaled to 0", mend)
    reasons = sorted({reason for pod in observed.pods.items for reason in waiting_reasons(pod)})
    what = f"the controller does not run: {'; '.join(reasons) or 'no pod of it is ready'}"
    mend = f"kubectl describe {target}, kubectl logs {target}{CONSEQUENCE}"
    return Finding(CHECK, "broken", what, mend)


def waiting_reasons(pod: Mapping[str, Any]) -> Iterator[str]:
    """Why containers of a pod do not start, in the kubelet's words."""
    status = pod.get("status") or {}
    every = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    for container in every:
        told = (container.get("state") or {}).get("waiting") or {}
        if told.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            yield f"{told['reason']}: {told.get('message') or container['image']}"


def _check_permissions(observed: ControllerState) -> Finding:
    if observed.rights.denial:
        kind = "localsubjectaccessreviews" if observed.single_namespace else "subjectaccessreviews"
        return unknown(PERMISSIONS, observed.rights.denial, f"create {kind}")
    needed, install, roles = REQUIRED, INSTALL, "manifests/base/rbac"
    if observed.single_namespace:
        needed, install = REQUIRED_NAMESPACED, INSTALL_NAMESPACED
        roles = "manifests/overlays/namespaced"
    if observed.rights.missing:
        lacking = ", ".join(map(str, observed.rights.missing))
        what = f"the account {observed.rights.account} may not {lacking}"
        mend = f"{install} (roles and bindings are in {roles})"
        return Finding(PERMISSIONS, "broken", what, mend)
    return Finding(
        PERMISSIONS, "good", f"{observed.rights.account} has the {len(needed)} rights it needs"
    )


ACCOUNT = "controller-account"


def check_single_namespace(
    observed: ControllerState, admission: WebhookState, trusted: str
) -> Iterator[Finding]:
    """Check that nothing injects, as is right here, and that patched jobs trust this controller."""
    yield _check_no_webhook(observed, admission)
    yield _check_account(observed, trusted)


def _check_no_webhook(observed: ControllerState, admission: WebhookState) -> Finding:
    injected = admission.labelled_dry_run.value is not None and is_injected(
        admission.labelled_dry_run.value
    )
    if injected or admission.configuration.value is not None:
        what = (
            f"there is a webhook for the whole cluster (in {admission.namespace}) beside the "
            f"controller of {observed.namespace}: two controllers would look after the same jobs"
        )
        mend = (
            "keep one of them: kubectl delete -k manifests/overlays/namespaced takes the "
            "namespace's own away"
        )
        return Finding(webhook_checks.CHECK, "broken" if injected else "warning", what, mend)
    what = (
        f"none, as is right for the jobs of {observed.namespace} alone: rover-kf submit, rover-kf "
        "patch, the SDK and pipelines' steps patch them; kubectl apply of a plain file does not"
    )
    return Finding(webhook_checks.CHECK, "good", what)


def _check_account(observed: ControllerState, trusted: str) -> Finding:
    if trusted == observed.account:
        return Finding(ACCOUNT, "good", f"jobs that you patch take the word of {trusted}")
    other = f"only of {trusted}" if trusted else "of no controller"
    what = (
        f"jobs that you patch would take the word {other}, not of {observed.account}: what it "
        "tells them is refused"
    )
    mend = (
        f"export ROVER_CONTROLLER_ACCOUNT={observed.account} where jobs are submitted, also in "
        "pipelines' steps"
    )
    return Finding(ACCOUNT, "warning", what, mend)
