# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Images: pods that cannot pull theirs, and a sidecar's image that no registry has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.doctor import dry_run_objects
from rover_kf.doctor.api_query import ApiClient, ListResult, list_all
from rover_kf.doctor.controller_checks import waiting_reasons
from rover_kf.doctor.finding import Finding, unknown

CHECK, SIDECAR = "images", "sidecar-image"
_PULLING = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName")


@dataclasses.dataclass(frozen=True, slots=True)
class ImageState:
    """Pods of the namespace, nodes with what they hold, and the image that is injected."""

    namespace: str
    pods: ListResult
    nodes: ListResult
    sidecar: str
    """Empty: none was injected."""


def collect(api: ApiClient, namespace: str, nodes: ListResult, injected: Manifest) -> ImageState:
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


def check(observed: ImageState) -> Iterator[Finding]:
    """Pods that wait first; then what would be pulled."""
    if observed.pods.denial:
        yield unknown(CHECK, observed.pods.denial, f"list pods of {observed.namespace}")
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
        return Finding(CHECK, "broken", "; ".join(sorted(stuck)), mend)
    return Finding(CHECK, "good", f"no pod of {observed.namespace} waits for an image")


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
