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
from rover_kf.doctor.api_query import Answer, Listing
from rover_kf.doctor.controller_checks import Controller
from rover_kf.doctor.diagnose import Facts
from rover_kf.doctor.images import Images
from rover_kf.doctor.kubernetes_version import Versions
from rover_kf.doctor.pod_checks import Pods
from rover_kf.doctor.rbac import Rights
from rover_kf.doctor.tls_secret import Encryption
from rover_kf.doctor.training_operator import TrainingOperator
from rover_kf.doctor.volume_claims import Claims
from rover_kf.doctor.webhook_checks import HOOK, WEBHOOK, Admission
from rover_kf.injection.inject import inject
from rover_kf.injection.settings import InjectionSettings
from rover_kf.webhook.certificates import issue

NOW = 1_700_000_000.0
NAMESPACE = "team"
IMAGE = "registry.example.com/rover-kf-sidecar:0.1.0"
Object = dict[str, Any]


def facts() -> Facts:
    """Everything in order, tried with an example job."""
    seen = versions()
    return Facts(
        NAMESPACE,
        NOW,
        own=False,
        versions=seen,
        operator=operator(),
        admission=admission(),
        controller=controller(),
        rights=Rights(""),
        pods=pods(seen.nodes),
        claims=Claims(NAMESPACE, {}, Listing((storage_class("fast", default=True),)), 2),
        images=Images(NAMESPACE, Listing(), seen.nodes, IMAGE),
        encryption=Encryption(NAMESPACE, "rover-kf-system"),
        place=place(),
    )


def namespaced(trusted: str = "team:rover-kf-controller", **seen: Any) -> Facts:
    """The same with a controller for the namespace alone, seen by who has rights there alone."""
    closed = Answer(refusal="mutatingwebhookconfigurations is forbidden")
    account = f"system:serviceaccount:{NAMESPACE}:rover-kf-controller"
    mine = dataclasses.replace(
        controller(), namespace=NAMESPACE, alone=True, rights=Rights(account)
    )
    return dataclasses.replace(
        facts(),
        controller=dataclasses.replace(mine, **seen),
        admission=dataclasses.replace(admission(), configuration=closed, tried=plain()),
        trusted=trusted,
    )


def plain() -> Answer:
    """The example job as it comes back where nothing injects."""
    return Answer(dry_run_objects.labelled(dry_run_objects.example(NAMESPACE), NAMESPACE))


def versions() -> Versions:
    """Three nodes of one version."""
    nodes = tuple(node(f"node-{number}") for number in range(3))
    return Versions(Answer({"gitVersion": "v1.34.4"}), Listing(nodes))


def node(name: str, kubelet: str = "v1.34.4", memory: str = "16Gi") -> Object:
    """A node that has no image yet."""
    status = {"nodeInfo": {"kubeletVersion": kubelet}, "allocatable": {"memory": memory}}
    return {"metadata": {"name": name}, "spec": {}, "status": status}


def place(**labels: str) -> Answer:
    """The namespace."""
    named = {"kubernetes.io/metadata.name": NAMESPACE, **labels}
    return Answer({"metadata": {"name": NAMESPACE, "labels": named}})


@functools.cache
def _injected() -> Object:
    plain = dry_run_objects.labelled(dry_run_objects.example(NAMESPACE), NAMESPACE)
    return inject(plain, settings=InjectionSettings(IMAGE)).manifest


def injected() -> Object:
    """The example job as the webhook gives it back."""
    return copy.deepcopy(_injected())


def operator(change: Callable[[Object], None] = lambda _: None) -> TrainingOperator:
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
    return TrainingOperator(
        Answer({"groups": [group]}),
        Answer({"resources": kinds}),
        Answer(definition(native=True)),
        Listing((deployment,)),
        Listing(),
        Answer(injected()),
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
    hook: Object | None = None, secret: Object | None = None, tried: Answer | None = None
) -> Admission:
    """A webhook that is trusted, reached and injects; fields of hook and secret may be replaced."""
    data = {key: base64.b64encode(value).decode() for key, value in _certificates().items()}
    service = {"name": WEBHOOK, "namespace": "rover-kf-system"}
    mine = {
        "name": HOOK,
        "clientConfig": {"service": service, "caBundle": data["ca.crt"]},
        **(hook or {}),
    }
    part = {"endpoints": [{"conditions": {"ready": True}}]}
    return Admission(
        Answer({"webhooks": [mine]}),
        Answer({"data": {**data, **(secret or {})}}),
        Answer({"spec": {}}),
        Listing((part,)),
        place(),
        tried or Answer(injected()),
    )


def controller(change: Callable[[Object], None] = lambda _: None, **seen: Any) -> Controller:
    """One that runs; its deployment may be changed."""
    container = {"image": "registry.example.com/rover-kf-controller:0.1.0"}
    pod = {"containers": [container], "serviceAccountName": "rover-kf-controller"}
    deployment: Object = {
        "spec": {"replicas": 1, "template": {"spec": pod}},
        "status": {"availableReplicas": 1},
    }
    change(deployment)
    account = "system:serviceaccount:rover-kf-system:rover-kf-controller"
    found = {"deployments": Listing((deployment,)), "pods": Listing(), "rights": Rights(account)}
    return Controller("rover-kf-system", **{**found, **seen})


def pods(nodes: Listing, refusal: str = "", job: Object | None = None) -> Pods:
    """The pods of a job (the example), admitted or refused."""
    made = dry_run_objects.pods(job or injected(), NAMESPACE)
    answer = {kind: Answer(None if refusal else pod, refusal) for kind, pod in made.items()}
    return Pods(NAMESPACE, answer, made, nodes)


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
