# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The pods of a job: admitted into its namespace, small enough for a node, with enough shm."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.doctor.api_query import Answer, Api, Listing, try_out
from rover_kf.doctor.finding import Finding, unread
from rover_kf.injection import quantities
from rover_kf.injection.storage_mount import covers

Object = Mapping[str, Any]

ADMITTED, MEMORY, SHM = "pods", "memory", "shm"
SHM_PATH = "/dev/shm"  # noqa: S108 - where every Linux has it
_TRAINERS = (names.PYTORCH_CONTAINER, names.TENSORFLOW_CONTAINER)
_WAYS = {
    "PodSecurity": (
        "give the pods what the profile asks for (securityContext: runAsNonRoot, runAsUser, "
        "allowPrivilegeEscalation: false, capabilities.drop: [ALL], seccompProfile), or have the "
        "namespace's label pod-security.kubernetes.io/enforce changed; a job with a Master cannot "
        "run under restricted: the operator's own init container does not fit it"
    ),
    "exceeded quota": "ask for less, or have the ResourceQuota raised; the sidecar counts, too",
    "must specify": "state requests and limits: the namespace's ResourceQuota wants them",
    "must specify limits.cpu": (
        "rover-kf states a CPU limit for its own containers only where those of all others equal "
        "their requests: state them so, or give the namespace a LimitRange with a default CPU limit"
    ),
    "maximum memory usage": (
        "have the LimitRange raised, or make the arena smaller: annotation "
        f"{names.PREFIX}checkpoint.arena"
    ),
    "serviceaccount": "create the service account in this namespace",
}
"""Words of a refusal, and what to do about it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pods:
    """What became of the pods that were tried, and where they could run."""

    namespace: str
    tried: Mapping[str, Answer]
    """By replica type: what the server would store of its first pod."""
    made: Mapping[str, Object]
    """The same as they were sent."""
    nodes: Listing


def look(api: Api, namespace: str, made: Mapping[str, Object], nodes: Listing) -> Pods:
    """Try to create each pod, and let none stay."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    tried = {
        kind: try_out(api, path, f"a pod of the {kind} replicas", pod) for kind, pod in made.items()
    }
    return Pods(namespace, tried, made, nodes)


def judge(seen: Pods, *, own: bool) -> Iterator[Finding]:
    """Admission, memory, shared memory.

    Args:
        seen: by look().
        own: whether the job is the caller's; of an example nothing is said of its shared memory.
    """
    yield from _admitted(seen)
    yield _fits(seen)
    if own:
        yield from _shared(seen.made)


def _admitted(seen: Pods) -> Iterator[Finding]:
    refused = {kind: answer.refusal for kind, answer in seen.tried.items() if answer.found is None}
    for kind, why in refused.items():
        if "cannot create resource" in why:
            yield unread(ADMITTED, why, f"create pods in {seen.namespace}")
            return
        told = why or f"there is no namespace {seen.namespace}"
        ways = [mend for words, mend in _WAYS.items() if words in why]
        mend = "; ".join(ways) or "change the job, or what refuses it"
        what = f"pods of the {kind} replicas would not be admitted into {seen.namespace}: {told}"
        yield Finding(ADMITTED, "broken", what, mend)
    if not refused:
        what = f"{seen.namespace} admits the injected pods (pod security, quotas, limit ranges)"
        yield Finding(ADMITTED, "good", what)


def _fits(seen: Pods) -> Finding:
    if seen.nodes.refusal:
        return unread(MEMORY, seen.nodes.refusal, "list nodes")
    usable = [node for node in seen.nodes.items if not node["spec"].get("unschedulable")]
    largest = max((_memory(node["status"]["allocatable"]) for node in usable), default=0)
    needs = {kind: _requested(pod["spec"]) for kind, pod in seen.made.items()}
    kind, most = max(needs.items(), key=lambda item: item[1])
    told = f"a {kind} pod asks for {_mib(most)} with its sidecar and arena"
    if most > largest:
        what = f"{told}; the largest schedulable node has {_mib(largest)} for pods"
        mend = (
            "ask for less memory, make the arena smaller (annotation "
            f"{names.PREFIX}checkpoint.arena), or add a larger node"
        )
        return Finding(MEMORY, "broken", what, mend)
    return Finding(MEMORY, "good", f"{told}; the largest node has {_mib(largest)}")


def _requested(pod: Object) -> int:
    """Memory that the scheduler looks for: containers and native sidecars side by side."""
    first = pod.get("initContainers") or ()
    together = [*pod["containers"], *(item for item in first if "restartPolicy" in item)]
    alone = [_asked(item) for item in first if "restartPolicy" not in item]
    return max(sum(map(_asked, together)), *alone, 0)


def _asked(container: Object) -> int:
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    return _memory({**limits, **requests})


def _shared(made: Mapping[str, Object]) -> Iterator[Finding]:
    for kind, pod in made.items():
        trainer = next(item for item in pod["spec"]["containers"] if item["name"] in _TRAINERS)
        volume = _volume_at(pod["spec"], trainer, SHM_PATH)
        if volume is None:
            what = f"{kind}: {SHM_PATH} has the container runtime's default size, mostly 64 MiB"
            mend = (
                f"mount an emptyDir with medium Memory at {SHM_PATH} if the script's DataLoader "
                "has workers: they end with a bus error when it is full"
            )
            yield Finding(SHM, "warning", what, mend)
            continue
        size, limit = volume.get("sizeLimit"), _limit(trainer)
        if size is not None and limit is not None and quantities.parse_bytes(size) > limit:
            what = f"{kind}: {SHM_PATH} may grow to {size}, its memory limit is {_mib(limit)}"
            mend = (
                "what is written there counts as memory of the container: make sizeLimit smaller "
                "or the limit larger"
            )
            yield Finding(SHM, "broken", what, mend)
        else:
            yield Finding(SHM, "good", f"{kind}: {SHM_PATH} of {size or 'any size'}")


def _volume_at(pod: Object, trainer: Object, path: str) -> Mapping[str, Any] | None:
    """The memory volume that a path of the trainer lies in."""
    mounts = [item for item in trainer.get("volumeMounts") or () if covers(item["mountPath"], path)]
    named = {item["name"] for item in mounts}
    for volume in pod.get("volumes") or ():
        if volume["name"] in named and (volume.get("emptyDir") or {}).get("medium") == "Memory":
            found: Mapping[str, Any] = volume["emptyDir"]
            return found
    return None


def _limit(container: Object) -> int | None:
    limits = (container.get("resources") or {}).get("limits") or {}
    return _memory(limits) if "memory" in limits else None


def _memory(amounts: Mapping[str, Any]) -> int:
    return quantities.parse_bytes(amounts.get("memory", 0))


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
