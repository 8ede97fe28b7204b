# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Our controller: running, and with the rights that its manifests give it.

There is one for the cluster, or one for a namespace alone (manifests/overlays/namespaced), which
has rights there alone and needs no others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.doctor import rbac
from rover_kf.doctor.api_query import ApiClient, ListResult, list_all
from rover_kf.doctor.finding import Finding, unknown
from rover_kf.doctor.rbac import MissingPermissions, Permission
from rover_kf.doctor.webhook_checks import INSTALL

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
REQUIRED = (
    *(
        Permission(verb, "kubeflow.org", "pytorchjobs")
        for verb in ("get", "list", "watch", "patch")
    ),
    *(Permission(verb, "kubeflow.org", "tfjobs") for verb in ("get", "list", "watch", "patch")),
    Permission("list", "", "pods"),
    Permission("watch", "", "pods"),
    Permission("delete", "", "pods"),
    Permission("patch", "", "pods", "resize"),
    _LOST_POD_PERMISSION,
    Permission("get", "", "nodes"),
    Permission("list", "", "nodes"),
    Permission("watch", "", "nodes"),
    Permission("create", "", "events"),
    Permission("list", "", "resourcequotas"),
    Permission("list", "autoscaling", "horizontalpodautoscalers"),
    Permission("create", "authentication.k8s.io", "tokenreviews"),
    Permission("create", "authorization.k8s.io", "subjectaccessreviews"),
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
    """Ask for its deployment, its pods and what its account may do.

    Args:
        api: of the cluster.
        namespace: that jobs go to; a controller that looks after it alone is there.
        controller_namespace: where else the cluster's controller is.
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
    found = rbac.review_account(api, account, needed, namespace if alone else "")
    return ControllerState(where, deployments, pods, found, alone)


def _deployments(api: ApiClient, namespace: str) -> ListResult:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    return list_all(api, path, f"deployments of {namespace}", {"labelSelector": PART_OF_SELECTOR})


def watched_namespace(deployment: Mapping[str, Any], namespace: str) -> str:
    """The one namespace that a controller looks after, by its own variable; empty: all.

    Args:
        deployment: of the controller.
        namespace: that the deployment is in.
    """
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
        needed, install, roles = (
            REQUIRED_NAMESPACED,
            INSTALL_NAMESPACED,
            "manifests/overlays/namespaced",
        )
    if observed.rights.missing:
        lacking = ", ".join(map(str, observed.rights.missing))
        what = f"the account {observed.rights.account} may not {lacking}"
        mend = f"{install} (roles and bindings are in {roles})"
        return Finding(PERMISSIONS, "broken", what, mend)
    return Finding(
        PERMISSIONS, "good", f"{observed.rights.account} has the {len(needed)} rights it needs"
    )
