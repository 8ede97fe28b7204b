# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The pods of a job: admitted into its namespace, small enough for a node, with enough shm.

Also their images: pods that cannot pull theirs, and a sidecar's image that no registry has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.doctor import dry_run_objects
from rover_kf.doctor.api_query import ApiClient, ListResult, ObjectResult, dry_run_create, list_all
from rover_kf.doctor.controller_checks import waiting_reasons
from rover_kf.doctor.finding import Finding, unknown
from rover_kf.injection import quantities
from rover_kf.injection.storage_mount import covers

IMAGES, SIDECAR = "images", "sidecar-image"
_PULLING = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName")


@dataclasses.dataclass(frozen=True, slots=True)
class ImageState:
    """Pods of the namespace, nodes with what they hold, and the image that is injected."""

    namespace: str
    pods: ListResult
    nodes: ListResult
    sidecar: str
    """Empty: none was injected."""


def collect_images(
    api: ApiClient, namespace: str, nodes: ListResult, injected: Manifest
) -> ImageState:
    """Ask for the namespace's pods."""
    pods = list_all(api, f"/api/v1/namespaces/{namespace}/pods", f"pods of {namespace}")
    return ImageState(namespace, pods, nodes, sidecar_image(injected))


def sidecar_image(job: Manifest) -> str:
    """Image of the sidecar in an injected job."""
    for spec in dry_run_objects.replica_specs(job).values():
        for item in spec["template"]["spec"].get("initContainers") or ():
            if item["name"] == names.SIDECAR_CONTAINER:
                return str(item["image"])
    return ""


def check_images(observed: ImageState) -> Iterator[Finding]:
    """Pods that wait first; then what would be pulled."""
    if observed.pods.denial:
        yield unknown(IMAGES, observed.pods.denial, f"list pods of {observed.namespace}")
    else:
        yield _check_pulls(observed)
    if observed.sidecar:
        yield _check_sidecar_image(observed)


def _check_pulls(observed: ImageState) -> Finding:
    stuck = {
        f"{pod['metadata']['name']}: {reason}"
        for pod in observed.pods.items
        for reason in waiting_reasons(pod)
        if reason.startswith(_PULLING)
    }
    if stuck:
        mend = (
            "correct the image's name, push it to a registry that the nodes reach, load it on the "
            "nodes, or name a Secret in imagePullSecrets"
        )
        return Finding(IMAGES, "broken", "; ".join(sorted(stuck)), mend)
    return Finding(IMAGES, "good", f"no pod of {observed.namespace} waits for an image")


def _check_sidecar_image(observed: ImageState) -> Finding:
    """A name without a registry is looked for in Docker's, where rover-kf has none."""
    lacking = [
        node["metadata"]["name"]
        for node in observed.nodes.items
        if not _has_image(node, observed.sidecar)
    ]
    first = observed.sidecar.split("/")[0]
    registry = "/" in observed.sidecar and ("." in first or ":" in first or first == "localhost")
    if observed.nodes.denial or not lacking:
        known = "" if observed.nodes.denial else ", and every node has it"
        return Finding(SIDECAR, "good", f"the sidecar's image is {observed.sidecar}{known}")
    where = ", ".join(sorted(lacking)[:5])
    if registry and first != "localhost":
        what = f"the sidecar's image is {observed.sidecar}; to be pulled by {where}"
        return Finding(SIDECAR, "good", what)
    what = f"the sidecar's image {observed.sidecar} names no registry, and is not on {where}"
    mend = (
        "push it to a registry and name it there: ROVER_SIDECAR_IMAGE in the ConfigMap "
        "rover-kf-controller (and in your environment, for rover-kf patch), or load it on the nodes"
    )
    return Finding(SIDECAR, "warning", what, mend)


def _has_image(node: object, image: str) -> bool:
    """Whether a node lists an image; kubelets list their fifty largest."""
    status = node["status"] if isinstance(node, dict) else {}
    known = {name for item in status.get("images") or () for name in item.get("names") or ()}
    tagged = image if ":" in image.rsplit("/", 1)[-1] else f"{image}:latest"
    return any(name == tagged or name.endswith(f"/{tagged}") for name in known)


Object = Mapping[str, Any]

ADMISSION, MEMORY, SHM = "pods", "memory", "shm"
SHM_PATH = "/dev/shm"  # noqa: S108 - where every Linux has it
_TRAINERS = (names.PYTORCH_CONTAINER, names.TENSORFLOW_CONTAINER)
_FIXES = {
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
class PodDryRuns:
    """What became of the pods that were tried, and where they could run."""

    namespace: str
    results: Mapping[str, ObjectResult]
    """By replica type: what the server would store of its first pod."""
    manifests: Mapping[str, Object]
    """The same as they were sent."""
    nodes: ListResult


def collect(
    api: ApiClient, namespace: str, manifests: Mapping[str, Object], nodes: ListResult
) -> PodDryRuns:
    """Try to create each pod, and let none stay."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    tried = {
        kind: dry_run_create(api, path, f"a pod of the {kind} replicas", pod)
        for kind, pod in manifests.items()
    }
    return PodDryRuns(namespace, tried, manifests, nodes)


def check(observed: PodDryRuns, *, is_user_job: bool) -> Iterator[Finding]:
    """Check admission and memory, and the shared memory of the caller's own job."""
    yield from _check_admission(observed)
    yield _check_memory(observed)
    if is_user_job:
        yield from _check_shared_memory(observed.manifests)


def _check_admission(observed: PodDryRuns) -> Iterator[Finding]:
    refused = {
        kind: answer.denial for kind, answer in observed.results.items() if answer.value is None
    }
    for kind, why in refused.items():
        if "cannot create resource" in why:
            yield unknown(ADMISSION, why, f"create pods in {observed.namespace}")
            return
        told = why or f"there is no namespace {observed.namespace}"
        ways = [mend for words, mend in _FIXES.items() if words in why]
        mend = "; ".join(ways) or "change the job, or what refuses it"
        what = (
            f"pods of the {kind} replicas would not be admitted into {observed.namespace}: {told}"
        )
        yield Finding(ADMISSION, "broken", what, mend)
    if not refused:
        what = f"{observed.namespace} admits the injected pods (pod security, quotas, limit ranges)"
        yield Finding(ADMISSION, "good", what)


def _check_memory(observed: PodDryRuns) -> Finding:
    if observed.nodes.denial:
        return unknown(MEMORY, observed.nodes.denial, "list nodes")
    usable = [node for node in observed.nodes.items if not node["spec"].get("unschedulable")]
    largest = max((_parse_memory(node["status"]["allocatable"]) for node in usable), default=0)
    needs = {kind: _requested_memory(pod["spec"]) for kind, pod in observed.manifests.items()}
    kind, most = max(needs.items(), key=lambda item: item[1])
    told = f"a {kind} pod asks for {_format_mib(most)} with its sidecar and arena"
    if most > largest:
        what = f"{told}; the largest schedulable node has {_format_mib(largest)} for pods"
        mend = (
            "ask for less memory, make the arena smaller (annotation "
            f"{names.PREFIX}checkpoint.arena), or add a larger node"
        )
        return Finding(MEMORY, "broken", what, mend)
    return Finding(MEMORY, "good", f"{told}; the largest node has {_format_mib(largest)}")


def _requested_memory(pod: Object) -> int:
    """Memory that the scheduler looks for: containers and native sidecars side by side."""
    first = pod.get("initContainers") or ()
    together = [*pod["containers"], *(item for item in first if "restartPolicy" in item)]
    alone = [_container_memory(item) for item in first if "restartPolicy" not in item]
    return max(sum(map(_container_memory, together)), *alone, 0)


def _container_memory(container: Object) -> int:
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    return _parse_memory({**limits, **requests})


def _check_shared_memory(manifests: Mapping[str, Object]) -> Iterator[Finding]:
    for kind, pod in manifests.items():
        trainer = next(item for item in pod["spec"]["containers"] if item["name"] in _TRAINERS)
        volume = _memory_volume(pod["spec"], trainer, SHM_PATH)
        if volume is None:
            what = f"{kind}: {SHM_PATH} has the container runtime's default size, mostly 64 MiB"
            mend = (
                f"mount an emptyDir with medium Memory at {SHM_PATH} if the script's DataLoader "
                "has workers: they end with a bus error when it is full"
            )
            yield Finding(SHM, "warning", what, mend)
            continue
        size, limit = volume.get("sizeLimit"), _memory_limit(trainer)
        if size is not None and limit is not None and quantities.parse_bytes(size) > limit:
            what = (
                f"{kind}: {SHM_PATH} may grow to {size}, its memory limit is {_format_mib(limit)}"
            )
            mend = (
                "what is written there counts as memory of the container: make sizeLimit smaller "
                "or the limit larger"
            )
            yield Finding(SHM, "broken", what, mend)
        else:
            yield Finding(SHM, "good", f"{kind}: {SHM_PATH} of {size or 'any size'}")


def _memory_volume(pod: Object, trainer: Object, path: str) -> Mapping[str, Any] | None:
    """The memory volume that a path of the trainer lies in."""
    mounts = [item for item in trainer.get("volumeMounts") or () if covers(item["mountPath"], path)]
    named = {item["name"] for item in mounts}
    for volume in pod.get("volumes") or ():
        if volume["name"] in named and (volume.get("emptyDir") or {}).get("medium") == "Memory":
            found: Mapping[str, Any] = volume["emptyDir"]
            return found
    return None


def _memory_limit(container: Object) -> int | None:
    limits = (container.get("resources") or {}).get("limits") or {}
    return _parse_memory(limits) if "memory" in limits else None


def _parse_memory(amounts: Mapping[str, Any]) -> int:
    return quantities.parse_bytes(amounts.get("memory", 0))


def _format_mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
