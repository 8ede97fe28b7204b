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
from rover_kf.doctor.api_query import Api, Listing, ask_all
from rover_kf.doctor.finding import Finding, unread
from rover_kf.doctor.rbac import Right, Rights
from rover_kf.doctor.webhook_checks import INSTALL

CHECK, RIGHTS = "controller", "controller-rights"
OURS = "app.kubernetes.io/name=rover-kf"
OF_CONTROLLER = f"{OURS},app.kubernetes.io/component=controller"
DEPLOYMENT = "rover-kf-controller"
INSTALL_ALONE = "kubectl apply -k manifests/overlays/namespaced"
WITHOUT = (
    "; until then jobs that run go on, recover and checkpoint, but nothing scales or is recorded"
)

_OF_LOST_PODS = Right("patch", "", "pods", "status")
"""Of nodes that are gone, which who may not read nodes does not know."""
NEEDED = (
    *(Right(verb, "kubeflow.org", "pytorchjobs") for verb in ("get", "list", "watch", "patch")),
    *(Right(verb, "kubeflow.org", "tfjobs") for verb in ("get", "list", "watch", "patch")),
    Right("list", "", "pods"),
    Right("watch", "", "pods"),
    Right("delete", "", "pods"),
    Right("patch", "", "pods", "resize"),
    _OF_LOST_PODS,
    Right("get", "", "nodes"),
    Right("list", "", "nodes"),
    Right("watch", "", "nodes"),
    Right("create", "", "events"),
    Right("list", "", "resourcequotas"),
    Right("list", "autoscaling", "horizontalpodautoscalers"),
    Right("create", "authentication.k8s.io", "tokenreviews"),
    Right("create", "authorization.k8s.io", "subjectaccessreviews"),
)
"""Of its ClusterRole, but for what names one object (manifests/base/rbac)."""

_OF_A_CLUSTER = ("nodes", "tokenreviews", "subjectaccessreviews")
NEEDED_ALONE = tuple(
    right for right in NEEDED if right.resource not in _OF_A_CLUSTER and right != _OF_LOST_PODS
)
"""Of its Role in one namespace alone (manifests/overlays/namespaced)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Controller:
    """What is to be seen of it."""

    namespace: str
    deployments: Listing
    pods: Listing
    rights: Rights
    alone: bool = False
    """Whether it looks after this one namespace, with rights there alone."""

    @property
    def account(self) -> str:
        """Its service account as ``namespace:name``."""
        return f"{self.namespace}:{_account(self.deployments)}"


def look(api: Api, namespace: str, home: str) -> Controller:
    """Ask for its deployment, its pods and what its account may do.

    Args:
        api: of the cluster.
        namespace: that jobs go to; a controller that looks after it alone is there.
        home: where else the cluster's controller is.
    """
    deployments = _deployments(api, namespace)
    mine = tuple(item for item in deployments.items if watched(item, namespace) == namespace)
    alone = bool(mine)
    where, needed = (namespace, NEEDED_ALONE) if alone else (home, NEEDED)
    if alone:
        deployments = Listing(mine)
    elif home != namespace:
        deployments = _deployments(api, home)
    place, selector = f"/api/v1/namespaces/{where}/pods", {"labelSelector": OF_CONTROLLER}
    pods = ask_all(api, place, f"pods of {where}", selector)
    account = f"system:serviceaccount:{where}:{_account(deployments)}"
    found = rbac.of_another(api, account, needed, namespace if alone else "")
    return Controller(where, deployments, pods, found, alone)


def _deployments(api: Api, namespace: str) -> Listing:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    return ask_all(api, path, f"deployments of {namespace}", {"labelSelector": OURS})


def watched(deployment: Mapping[str, Any], namespace: str) -> str:
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


def _account(deployments: Listing) -> str:
    for deployment in deployments.items:
        named = deployment["spec"]["template"]["spec"].get("serviceAccountName")
        return str(named or "default")
    return DEPLOYMENT


def judge(seen: Controller) -> Iterator[Finding]:
    """Whether it runs; then what it may not do."""
    found, place = seen.deployments, f"-n {seen.namespace} deploy/{DEPLOYMENT}"
    if found.refusal:
        yield unread(CHECK, found.refusal, f"list deployments of {seen.namespace}")
    elif not found.items:
        what = f"there is no controller in {seen.namespace}"
        yield Finding(CHECK, "broken", what, f"{INSTALL}{WITHOUT}")
        return
    else:
        yield _running(found.items[0], seen, place)
    yield _allowed(seen)


def _running(deployment: Mapping[str, Any], seen: Controller, place: str) -> Finding:
    told = f", for the jobs of {seen.namespace} alone" if seen.alone else ""
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    if (deployment.get("status") or {}).get("availableReplicas"):
        return Finding(CHECK, "good", f"{image} runs{told}")
    if not deployment["spec"].get("replicas", 1):
        mend = f"kubectl scale {place} --replicas=1{WITHOUT}"
        return Finding(CHECK, "broken", "the controller is scaled to 0", mend)
    reasons = sorted({reason for pod in seen.pods.items for reason in waiting(pod)})
    what = f"the controller does not run: {'; '.join(reasons) or 'no pod of it is ready'}"
    mend = f"kubectl describe {place}, kubectl logs {place}{WITHOUT}"
    return Finding(CHECK, "broken", what, mend)


def waiting(pod: Mapping[str, Any]) -> Iterator[str]:
    """Why containers of a pod do not start, in the kubelet's words."""
    status = pod.get("status") or {}
    every = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    for container in every:
        told = (container.get("state") or {}).get("waiting") or {}
        if told.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            yield f"{told['reason']}: {told.get('message') or container['image']}"


def _allowed(seen: Controller) -> Finding:
    if seen.rights.refusal:
        kind = "localsubjectaccessreviews" if seen.alone else "subjectaccessreviews"
        return unread(RIGHTS, seen.rights.refusal, f"create {kind}")
    needed, install, roles = NEEDED, INSTALL, "manifests/base/rbac"
    if seen.alone:
        needed, install, roles = NEEDED_ALONE, INSTALL_ALONE, "manifests/overlays/namespaced"
    if seen.rights.missing:
        lacking = ", ".join(map(str, seen.rights.missing))
        what = f"the account {seen.rights.account} may not {lacking}"
        mend = f"{install} (roles and bindings are in {roles})"
        return Finding(RIGHTS, "broken", what, mend)
    return Finding(RIGHTS, "good", f"{seen.rights.account} has the {len(needed)} rights it needs")
