# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Our controller: running, and with the rights that its manifests give it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf.doctor import rights
from rover_kf.doctor.admission import INSTALL
from rover_kf.doctor.answer import Api, Listing, ask_all
from rover_kf.doctor.finding import Finding, unread
from rover_kf.doctor.rights import Right, Rights

CHECK, RIGHTS = "controller", "controller-rights"
OURS = "app.kubernetes.io/name=rover-kf"
OF_CONTROLLER = f"{OURS},app.kubernetes.io/component=controller"
DEPLOYMENT = "rover-kf-controller"
WITHOUT = (
    "; until then jobs that run go on, recover and checkpoint, but nothing scales or is recorded"
)

NEEDED = (
    *(Right(verb, "kubeflow.org", "pytorchjobs") for verb in ("get", "list", "watch", "patch")),
    *(Right(verb, "kubeflow.org", "tfjobs") for verb in ("get", "list", "watch", "patch")),
    Right("list", "", "pods"),
    Right("watch", "", "pods"),
    Right("delete", "", "pods"),
    Right("patch", "", "pods", "resize"),
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


@dataclasses.dataclass(frozen=True, slots=True)
class Controller:
    """What is to be seen of it."""

    namespace: str
    deployments: Listing
    pods: Listing
    rights: Rights


def look(api: Api, namespace: str) -> Controller:
    """Ask for its deployment, its pods and what its account may do."""
    deployments = ask_all(
        api,
        f"/apis/apps/v1/namespaces/{namespace}/deployments",
        f"deployments of {namespace}",
        {"labelSelector": OURS},
    )
    place, selector = f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": OF_CONTROLLER}
    pods = ask_all(api, place, f"pods of {namespace}", selector)
    account = f"system:serviceaccount:{namespace}:{_account(deployments)}"
    return Controller(namespace, deployments, pods, rights.of_another(api, account, NEEDED))


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
        yield _running(found.items[0], seen.pods, place)
    yield _allowed(seen)


def _running(deployment: Mapping[str, Any], pods: Listing, place: str) -> Finding:
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    if (deployment.get("status") or {}).get("availableReplicas"):
        return Finding(CHECK, "good", f"{image} runs")
    if not deployment["spec"].get("replicas", 1):
        mend = f"kubectl scale {place} --replicas=1{WITHOUT}"
        return Finding(CHECK, "broken", "the controller is scaled to 0", mend)
    reasons = sorted({reason for pod in pods.items for reason in waiting(pod)})
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
        return unread(RIGHTS, seen.rights.refusal, "create subjectaccessreviews")
    if seen.rights.missing:
        lacking = ", ".join(map(str, seen.rights.missing))
        what = f"the account {seen.rights.account} may not {lacking}"
        mend = f"{INSTALL} (roles and bindings are in manifests/base/rbac)"
        return Finding(RIGHTS, "broken", what, mend)
    return Finding(RIGHTS, "good", f"{seen.rights.account} has the {len(NEEDED)} rights it needs")
