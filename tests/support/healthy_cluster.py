# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the doctor sees of a cluster in which nothing is wrong; tests change one fact of it."""

from __future__ import annotations

import base64
import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from rover_kf.doctor import dry_run_objects
from rover_kf.doctor.api_query import ListResult, ObjectResult
from rover_kf.doctor.controller_checks import ControllerState
from rover_kf.doctor.diagnose import ClusterFacts
from rover_kf.doctor.kubernetes_version import ClusterVersions
from rover_kf.doctor.pod_checks import ImageState, PodDryRuns
from rover_kf.doctor.rbac import MissingPermissions
from rover_kf.doctor.tls_secret import TlsState
from rover_kf.doctor.training_operator import TrainingOperatorState
from rover_kf.doctor.volume_claims import VolumeClaimState
from rover_kf.doctor.webhook_checks import HOOK, WEBHOOK, WebhookState
from rover_kf.injection.inject import inject
from rover_kf.injection.settings import InjectionSettings
from rover_kf.webhook.certificates import issue

NOW = 1_700_000_000.0
NAMESPACE = "team"
IMAGE = "registry.example.com/rover-kf-sidecar:0.1.0"
Object = dict[str, Any]


def facts() -> ClusterFacts:
    """Everything in order, tried with an example job."""
    seen = versions()
    return ClusterFacts(
        NAMESPACE,
        NOW,
        is_user_job=False,
        versions=seen,
        operator=operator(),
        admission=admission(),
        controller=controller(),
        permissions=MissingPermissions(""),
        pods=pods(seen.nodes),
        claims=VolumeClaimState(
            NAMESPACE, {}, ListResult((storage_class("fast", default=True),)), 2
        ),
        images=ImageState(NAMESPACE, ListResult(), seen.nodes, IMAGE),
        tls=TlsState(NAMESPACE, "rover-kf-system"),
        namespace_object=place(),
    )


def namespaced(trusted: str = "team:rover-kf-controller", **seen: Any) -> ClusterFacts:
    """The same with a controller for the namespace alone, seen by who has rights there alone."""
    closed = ObjectResult(denial="mutatingwebhookconfigurations is forbidden")
    account = f"system:serviceaccount:{NAMESPACE}:rover-kf-controller"
    mine = dataclasses.replace(
        controller(), namespace=NAMESPACE, single_namespace=True, rights=MissingPermissions(account)
    )
    return dataclasses.replace(
        facts(),
        controller=dataclasses.replace(mine, **seen),
        admission=dataclasses.replace(admission(), configuration=closed, labelled_dry_run=plain()),
        trusted_account=trusted,
    )


def plain() -> ObjectResult:
    """The example job as it comes back where nothing injects."""
    return ObjectResult(
        dry_run_objects.with_label(dry_run_objects.example_job(NAMESPACE), NAMESPACE)
    )


def versions() -> ClusterVersions:
    """Three nodes of one version."""
    nodes = tuple(node(f"node-{number}") for number in range(3))
    return ClusterVersions(ObjectResult({"gitVersion": "v1.34.4"}), ListResult(nodes))


def node(name: str, kubelet: str = "v1.34.4", memory: str = "16Gi") -> Object:
    """A node that has no image yet."""
    status = {"nodeInfo": {"kubeletVersion": kubelet}, "allocatable": {"memory": memory}}
    return {"metadata": {"name": name}, "spec": {}, "status": status}


def place(**labels: str) -> ObjectResult:
    """The namespace."""
    named = {"kubernetes.io/metadata.name": NAMESPACE, **labels}
    return ObjectResult({"metadata": {"name": NAMESPACE, "labels": named}})


@functools.cache
def _injected() -> Object:
    plain = dry_run_objects.with_label(dry_run_objects.example_job(NAMESPACE), NAMESPACE)
    return inject(plain, settings=InjectionSettings(IMAGE)).manifest


def injected() -> Object:
    """The example job as the webhook gives it back."""
    return copy.deepcopy(_injected())


def operator(change: Callable[[Object], None] = lambda _: None) -> TrainingOperatorState:
    """Version 1.9 at work; its deployment may be changed."""
    kinds = [{"name": name} for name in ("pytorchjobs", "tfjobs", "jaxjobs")]
    group = {"name": "kubeflow.org", "versions": [{"version": "v1"}]}
    container = {"image": "kubeflow/training-operator:v1.9.3"}
    deployment: Object = {
        "metadata": {"name": "training-operator", "namespace": "kubeflow"},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
        "status": {"availableReplicas": 1},
    }
    change(deployment)
    return TrainingOperatorState(
        ObjectResult({"groups": [group]}),
        ObjectResult({"resources": kinds}),
        ObjectResult(definition(native=True)),
        ListResult((deployment,)),
        ListResult(),
        ObjectResult(injected()),
    )


def definition(*, native: bool) -> Object:
    """Of PyTorchJobs, as far as init containers go."""
    fields = {"name": {}, **({"restartPolicy": {"type": "string"}} if native else {})}
    found: Object = {"items": {"properties": fields}}
    for name in ("initContainers", "spec", "template"):
        found = {"properties": {name: found}}
    found = {"properties": {"pytorchReplicaSpecs": {"additionalProperties": found}}}
    schema = {"openAPIV3Schema": {"properties": {"spec": found}}}
    return {"spec": {"versions": [{"name": "v1", "schema": schema}]}}


@functools.cache
def _certificates() -> dict[str, bytes]:
    return issue([f"{WEBHOOK}.rover-kf-system.svc"], NOW).to_data()


def admission(
    hook: Object | None = None, secret: Object | None = None, tried: ObjectResult | None = None
) -> WebhookState:
    """A webhook that is trusted, reached and injects; fields of hook and secret may be replaced."""
    data = {key: base64.b64encode(value).decode() for key, value in _certificates().items()}
    service = {"name": WEBHOOK, "namespace": "rover-kf-system"}
    mine = {
        "name": HOOK,
        "clientConfig": {"service": service, "caBundle": data["ca.crt"]},
        **(hook or {}),
    }
    part = {"endpoints": [{"conditions": {"ready": True}}]}
    return WebhookState(
        ObjectResult({"webhooks": [mine]}),
        ObjectResult({"data": {**data, **(secret or {})}}),
        ObjectResult({"spec": {}}),
        ListResult((part,)),
        place(),
        tried or ObjectResult(injected()),
    )


def controller(change: Callable[[Object], None] = lambda _: None, **seen: Any) -> ControllerState:
    """One that runs; its deployment may be changed."""
    container = {"image": "registry.example.com/rover-kf-controller:0.1.0"}
    pod = {"containers": [container], "serviceAccountName": "rover-kf-controller"}
    deployment: Object = {
        "spec": {"replicas": 1, "template": {"spec": pod}},
        "status": {"availableReplicas": 1},
    }
    change(deployment)
    account = "system:serviceaccount:rover-kf-system:rover-kf-controller"
    found = {
        "deployments": ListResult((deployment,)),
        "pods": ListResult(),
        "rights": MissingPermissions(account),
    }
    return ControllerState("rover-kf-system", **{**found, **seen})


def pods(nodes: ListResult, refusal: str = "", job: Object | None = None) -> PodDryRuns:
    """The pods of a job (the example), admitted or refused."""
    made = dry_run_objects.first_pods(job or injected(), NAMESPACE)
    answer = {kind: ObjectResult(None if refusal else pod, refusal) for kind, pod in made.items()}
    return PodDryRuns(NAMESPACE, answer, made, nodes)


def waiting_pod(name: str, reason: str, message: str) -> Object:
    """A pod whose container does not start."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {
        "metadata": {"name": name},
        "status": {"containerStatuses": [{"image": "some:1", "state": state}]},
    }


def storage_class(name: str, *, default: bool = False, mode: str = "Immediate") -> Object:
    """A class of volumes."""
    key = "storageclass.kubernetes.io/is-default-class"
    annotations = {key: "true"} if default else {}
    return {"metadata": {"name": name, "annotations": annotations}, "volumeBindingMode": mode}


def claim(phase: str = "Bound", mode: str = "ReadWriteMany", chosen: str | None = "fast") -> Object:
    """A claim for checkpoints."""
    spec: Object = {"accessModes": [mode]}
    if chosen is not None:
        spec["storageClassName"] = chosen
    return {"spec": spec, "status": {"phase": phase}}
