# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The native sidecar and its environment (rover_kf/sidecar/settings.py reads it)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rover_kf.api import codec, names
from rover_kf.injection import command, keyed_lists, resources, security, volumes
from rover_kf.injection.injection_plan import ReplicaPlan, coordinator_of, first_pod_of
from rover_kf.job_kinds.job_spec import JobSpec

RUNTIME_COMMAND = ("python", "-m", "rover_kf.sidecar.runtime", command.RUNTIME)


def init_container(plan: ReplicaPlan) -> dict[str, Any]:
    """The init container of one replica type."""
    return {
        "name": names.RUNTIME_CONTAINER,
        "image": plan.settings.sidecar_image,
        "imagePullPolicy": plan.settings.image_pull_policy,
        "command": list(RUNTIME_COMMAND),
        "resources": resources.runtime(plan),
        "securityContext": security.container_context(plan),
        "volumeMounts": [volumes.MOUNT],
    }


ANNOTATIONS = (
    "traffic.sidecar.istio.io/excludeInboundPorts",
    "traffic.sidecar.istio.io/excludeOutboundPorts",
)


def exclude_ports(template: Mapping[str, Any]) -> dict[str, Any]:
    """Exclude the port by the pod's annotations, beside ports that are excluded already."""
    metadata = template.get("metadata") or {}
    stated = metadata.get("annotations") or {}
    port = str(names.PORT)
    ours = {}
    for key in ANNOTATIONS:
        ports = [item.strip() for item in stated.get(key, "").split(",") if item.strip()]
        ours[key] = stated[key] if port in ports else ",".join((*ports, port))
    return {**template, "metadata": {**metadata, "annotations": {**stated, **ours}}}


COMMAND = ("python", "-m", "rover_kf.sidecar")


MANAGED = {names.RUNTIME_CONTAINER: RUNTIME_COMMAND, names.SIDECAR_CONTAINER: COMMAND}


def container(plan: ReplicaPlan) -> dict[str, Any]:
    """The sidecar of one replica type.

    No liveness probe: a restart of a native sidecar counts towards the job's backoffLimit. No
    startup probe: the trainer's container would begin to load torch only seconds later, and
    launcher and trainer wait for the sidecar by themselves.
    """
    mounts = [volumes.MOUNT, volumes.TOKEN_MOUNT]
    if plan.storage_mount is not None:
        mounts.append(dict(plan.storage_mount))
    if plan.key_secret is not None:
        mounts.append(volumes.KEY_MOUNT)
    encrypts = plan.policy.tls.secret is not None
    if encrypts:
        mounts.append(volumes.TLS_MOUNT)
    secret = plan.policy.checkpoint.secret
    return {
        "name": names.SIDECAR_CONTAINER,
        "image": plan.settings.sidecar_image,
        "imagePullPolicy": plan.settings.image_pull_policy,
        "restartPolicy": "Always",
        "command": list(COMMAND),
        "env": environment(plan),
        **({"envFrom": [{"secretRef": {"name": secret}}]} if secret else {}),
        # Declared so that the scheduler keeps two pods with hostNetwork off one node.
        "ports": [
            {
                "name": names.TLS_PORT_NAME if encrypts else names.PORT_NAME,
                "containerPort": names.PORT,
                "protocol": "TCP",
            }
        ],
        "resources": resources.sidecar(plan),
        "securityContext": security.container_context(plan),
        "volumeMounts": mounts,
    }


def environment(plan: ReplicaPlan) -> list[dict[str, Any]]:
    """One variable for each setting of the sidecar, and one for the policy."""
    policy, world = plan.policy, plan.world
    values = {
        names.ENV_COORDINATOR: coordinator_of(plan),
        names.ENV_LEDGER: first_pod_of(plan, plan.ledger),
        names.ENV_KEEPER: first_pod_of(plan, plan.replica_holder),
        names.ENV_KEEPS: first_pod_of(plan, plan.holds_replica_of),
        names.ENV_NODES: world.masters + world.workers,
        names.ENV_MIN_NODES: world.masters + world.min_workers,
        names.ENV_MAX_NODES: world.masters + world.max_workers,
        names.ENV_MASTERS: world.masters,
        names.ENV_ARENA_BYTES: plan.arena_bytes,
        names.ENV_POLICY: _policy(plan),
        names.ENV_AUTH: "serviceaccount",
        names.ENV_TOKEN_HOME: names.TOKEN_HOME,
        names.ENV_KEY_HOME: names.KEY_HOME if plan.key_secret else "",
        names.ENV_TLS_HOME: names.TLS_HOME if policy.tls.secret else "",
        names.ENV_CONTROLLER_ACCOUNT: plan.settings.controller_account,
    }
    return [
        {"name": names.ENV_HOME, "value": names.HOME},
        *job_variables(plan),
        _field(names.ENV_POD_NAME, "metadata.name"),
        _field(names.ENV_POD_UID, "metadata.uid"),
        _field(names.ENV_POD_IP, "status.podIP"),
        _field(names.ENV_NODE_NAME, "spec.nodeName"),
        _label(names.ENV_REPLICA_TYPE, names.REPLICA_TYPE_LABEL),
        _label(names.ENV_REPLICA_INDEX, names.REPLICA_INDEX_LABEL),
        *({"name": name, "value": str(value)} for name, value in values.items() if value != ""),
    ]


def job_variables(plan: ReplicaPlan) -> list[dict[str, Any]]:
    """Job and namespace; other variables refer to them."""
    label = _label(names.ENV_JOB, names.JOB_NAME_LABEL)
    job = {"name": names.ENV_JOB, "value": plan.job} if plan.job else label
    return [job, _field(names.ENV_NAMESPACE, "metadata.namespace")]


def apply(pod: keyed_lists.Tree, plan: ReplicaPlan) -> dict[str, Any]:
    """Put our init container and sidecar before the user's: theirs may wait for a peer's."""
    first = (init_container(plan), container(plan))
    return keyed_lists.extend_items(pod, "initContainers", first=first)


def remove(pod: keyed_lists.Tree) -> dict[str, Any]:
    """Take them away again."""
    return keyed_lists.filter_items(pod, "initContainers", lambda item: not is_managed(item))


def is_managed(item: keyed_lists.Item) -> bool:
    """Whether an init container is one that apply() wrote, not a user's of the same name."""
    return tuple(item.get("command") or ()) == MANAGED.get(str(item.get("name")))


def image_of(job: JobSpec) -> str | None:
    """Image of the sidecar in an injected job; None if there is none."""
    for replica in job.replicas:
        for item in replica.spec["template"]["spec"].get("initContainers") or ():
            if item.get("name") == names.SIDECAR_CONTAINER and is_managed(item):
                return str(item.get("image"))
    return None


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _policy(plan: ReplicaPlan) -> str:
    """JSON of the policy; a world that stands alone stores no checkpoints."""
    policy = plan.policy
    if plan.world.standalone:
        checkpoint = dataclasses.replace(policy.checkpoint, path=None)
        policy = dataclasses.replace(policy, checkpoint=checkpoint)
    return codec.dumps(policy).decode()


def _label(name: str, label: str) -> dict[str, Any]:
    return _field(name, f"metadata.labels['{label}']")
