# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The Training Operator: there, running, acting, and new enough to keep native sidecars."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.doctor import dry_run_objects
from rover_kf.doctor.api_query import ApiClient, ListResult, ObjectResult, get, list_all
from rover_kf.doctor.finding import Finding, unknown
from rover_kf.job_kinds.pytorchjob.kind import PYTORCHJOB

CHECK, ACTING, SIDECARS = "training-operator", "operator-acting", "native-sidecars"
SELECTOR = "control-plane=kubeflow-training-operator"
QUIET_SECONDS = 60.0
"""A job of which the operator has said nothing for so long is not acted on."""
INSTALL = (
    "install it: kubectl apply --server-side -k "
    '"github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.3"'
)
_CRD = f"{PYTORCHJOB.plural}.{names.KUBEFLOW_GROUP}"
_TAG = re.compile(r":v?(\d+\.\d+(\.\d+)?)$")
_OPERATOR_MANAGERS = ("", "kubeflow.org/training-operator")


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingOperatorState:
    """What is to be seen of it."""

    groups: ObjectResult
    """API groups of the server."""
    kinds: ObjectResult
    """Of kubeflow.org/v1."""
    definition: ObjectResult
    """Of PyTorchJobs."""
    deployments: ListResult
    jobs: ListResult
    """PyTorchJobs of the namespace."""
    injected_dry_run: ObjectResult
    """What the server would store of an injected job."""


def collect(
    api: ApiClient, namespace: str, injected_dry_run: ObjectResult
) -> TrainingOperatorState:
    """Ask for its kinds, its deployment and the jobs that it should act on."""
    groups = ObjectResult(api.request("GET", "/apis", what="API groups"))
    group = f"/apis/{names.KUBEFLOW_GROUP}/{names.KUBEFLOW_VERSION}"
    there = has_group(groups)
    jobs = PYTORCHJOB.path(namespace)
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    what = "deployments of the Training Operator"
    query = {"labelSelector": SELECTOR}
    return TrainingOperatorState(
        groups,
        get(api, group, "kinds of Kubeflow") if there else ObjectResult(),
        get(api, f"{definitions}/{_CRD}", "definition of PyTorchJobs"),
        list_all(api, "/apis/apps/v1/deployments", what, query),
        list_all(api, jobs, f"PyTorchJobs of {namespace}") if there else ListResult(),
        injected_dry_run,
    )


def has_group(groups: ObjectResult) -> bool:
    """Whether the server knows jobs of Kubeflow at all."""
    known = (groups.value or {}).get("groups") or ()
    versions = {
        version["version"]
        for group in known
        if group["name"] == names.KUBEFLOW_GROUP
        for version in group["versions"]
    }
    return names.KUBEFLOW_VERSION in versions


def check(observed: TrainingOperatorState, now: float) -> Iterator[Finding]:
    """Its kinds first: without them nothing else can be asked."""
    kinds = {item["name"] for item in (observed.kinds.value or {}).get("resources") or ()}
    if PYTORCHJOB.plural not in kinds:
        yield Finding(
            CHECK, "broken", "the cluster knows no PyTorchJobs (kubeflow.org/v1)", INSTALL
        )
        return
    yield _check_running(observed, kinds)
    yield _check_acting(observed.jobs, now)
    yield _check_sidecars(observed)


def _check_running(observed: TrainingOperatorState, kinds: set[str]) -> Finding:
    found = observed.deployments
    if found.denial:
        return unknown(CHECK, found.denial, "list deployments")
    if not found.items:
        what = f"PyTorchJobs are known, but no deployment is labelled {SELECTOR}"
        return Finding(CHECK, "broken", what, INSTALL)
    deployment = found.items[0]
    metadata, status = deployment["metadata"], deployment.get("status") or {}
    place = f"-n {metadata['namespace']} deploy/{metadata['name']}"
    named = f"Training Operator {_operator_version(deployment, kinds, observed.definition)}"
    wanted = (deployment.get("spec") or {}).get("replicas", 1)
    if not status.get("availableReplicas"):
        what = f"{named} is not running: no pod of {place} is available ({wanted} wanted)"
        mend = f"kubectl scale {place} --replicas=1"
        if wanted:
            mend = f"see why: kubectl describe {place}, kubectl logs {place}"
        return Finding(CHECK, "broken", what, mend)
    if (
        "failed calling webhook" in observed.injected_dry_run.denial
        and "rover-kf" not in observed.injected_dry_run.denial
    ):
        mend = f"kubectl rollout restart {place}; it writes its webhook's certificate anew"
        return Finding(
            CHECK, "broken", f"{named} runs, but: {observed.injected_dry_run.denial}", mend
        )
    return Finding(CHECK, "good", f"{named} runs")


def _operator_version(
    deployment: Mapping[str, Any], kinds: set[str], definition: ObjectResult
) -> str:
    """From the image's tag; where that is a commit, from what the version brought."""
    image = str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])
    match = _TAG.search(image)
    if match is not None:
        return match[1]
    if "jaxjobs" in kinds:
        return "1.9 or newer"
    kept = definition.value is not None and keeps_sidecars(definition.value)
    return "1.8" if kept else f"of an unknown version ({image})"


def _check_acting(jobs: ListResult, now: float) -> Finding:
    if jobs.denial:
        return unknown(ACTING, jobs.denial, "list PyTorchJobs")
    quiet = [job["metadata"]["name"] for job in jobs.items if _is_quiet(job, now)]
    if quiet:
        what = f"nothing has been said of {', '.join(sorted(quiet))} for {QUIET_SECONDS:g} s"
        mend = "read the operator's log; restart it if it hangs"
        return Finding(ACTING, "broken", what, mend)
    if not jobs.items:
        return Finding(ACTING, "good", "no job waits for the operator in this namespace")
    return Finding(ACTING, "good", f"the operator has acted on all {len(jobs.items)} jobs")


def _is_quiet(job: Mapping[str, Any], now: float) -> bool:
    run = job["spec"].get("runPolicy") or {}
    if run.get("managedBy", "") not in _OPERATOR_MANAGERS or run.get("suspend"):
        return False
    made = dt.datetime.fromisoformat(job["metadata"]["creationTimestamp"].replace("Z", "+00:00"))
    told = (job.get("status") or {}).get("conditions")
    return not told and now - made.timestamp() > QUIET_SECONDS


def _check_sidecars(observed: TrainingOperatorState) -> Finding:
    """Asked of the server itself by a dry run, else of the definition of PyTorchJobs."""
    if observed.injected_dry_run.value is not None:
        kept = _has_sidecar(observed.injected_dry_run.value)
    elif observed.definition.value is not None:
        kept = keeps_sidecars(observed.definition.value)
    else:
        told = observed.definition.denial or "there is no definition"
        return unknown(SIDECARS, told, "read custom resource definitions")
    if kept:
        return Finding(SIDECARS, "good", "the definition of PyTorchJobs keeps native sidecars")
    what = (
        "the definition of PyTorchJobs drops initContainers[].restartPolicy: the sidecar would be "
        "an init container that never ends"
    )
    mend = "upgrade the Training Operator to 1.8 or newer, with its definitions"
    return Finding(SIDECARS, "broken", what, mend)


def _has_sidecar(job: Mapping[str, Any]) -> bool:
    found = dry_run_objects.replica_specs(job).values()
    first = [spec["template"]["spec"].get("initContainers") or () for spec in found]
    return any(item.get("restartPolicy") == "Always" for items in first for item in items)


def keeps_sidecars(definition: Mapping[str, Any]) -> bool:
    """Whether a definition of PyTorchJobs has native sidecars."""
    return any(
        "restartPolicy"
        in _fields(
            version.get("schema") or {},
            f"openAPIV3Schema.spec.{PYTORCHJOB.specs}.*.template.spec.initContainers.[]",
        )
        for version in definition["spec"]["versions"]
        if version["name"] == names.KUBEFLOW_VERSION
    )


def _fields(schema: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Properties at a path of a schema; ``*`` is any key, ``[]`` any item."""
    head, *rest = path.split(".")
    found: Mapping[str, Any] = schema.get(head) or {}
    for step in rest:
        if step == "*":
            found = found.get("additionalProperties") or {}
        elif step == "[]":
            found = found.get("items") or {}
        else:
            found = (found.get("properties") or {}).get(step) or {}
    return found.get("properties") or {}
