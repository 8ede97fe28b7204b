# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Images: pods that cannot pull theirs, and a sidecar's image that no registry has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.doctor import dry_run_objects
from rover_kf.doctor.api_query import Api, Listing, ask_all
from rover_kf.doctor.controller_checks import waiting
from rover_kf.doctor.finding import Finding, unread

CHECK, SIDECAR = "images", "sidecar-image"
_PULLING = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName")


@dataclasses.dataclass(frozen=True, slots=True)
class Images:
    """Pods of the namespace, nodes with what they hold, and the image that is injected."""

    namespace: str
    pods: Listing
    nodes: Listing
    sidecar: str
    """Empty: none was injected."""


def look(api: Api, namespace: str, nodes: Listing, injected: Manifest) -> Images:
    """Ask for the namespace's pods."""
    pods = ask_all(api, f"/api/v1/namespaces/{namespace}/pods", f"pods of {namespace}")
    return Images(namespace, pods, nodes, sidecar_of(injected))


def sidecar_of(job: Manifest) -> str:
    """Image of the sidecar in an injected job."""
    for spec in dry_run_objects.specs(job).values():
        for item in spec["template"]["spec"].get("initContainers") or ():
            if item["name"] == names.SIDECAR_CONTAINER:
                return str(item["image"])
    return ""


def judge(seen: Images) -> Iterator[Finding]:
    """Pods that wait first; then what would be pulled."""
    if seen.pods.refusal:
        yield unread(CHECK, seen.pods.refusal, f"list pods of {seen.namespace}")
    else:
        yield _waiting(seen)
    if seen.sidecar:
        yield _sidecar(seen)


def _waiting(seen: Images) -> Finding:
    stuck = {
        f"{pod['metadata']['name']}: {reason}"
        for pod in seen.pods.items
        for reason in waiting(pod)
        if reason.startswith(_PULLING)
    }
    if stuck:
        mend = (
            "correct the image's name, push it to a registry that the nodes reach, load it on the "
            "nodes, or name a Secret in imagePullSecrets"
        )
        return Finding(CHECK, "broken", "; ".join(sorted(stuck)), mend)
    return Finding(CHECK, "good", f"no pod of {seen.namespace} waits for an image")


def _sidecar(seen: Images) -> Finding:
    """A name without a registry is looked for in Docker's, where rover-kf has none."""
    lacking = [
        node["metadata"]["name"] for node in seen.nodes.items if not _held(node, seen.sidecar)
    ]
    first = seen.sidecar.split("/")[0]
    registry = "/" in seen.sidecar and ("." in first or ":" in first or first == "localhost")
    if seen.nodes.refusal or not lacking:
        known = "" if seen.nodes.refusal else ", and every node has it"
        return Finding(SIDECAR, "good", f"the sidecar's image is {seen.sidecar}{known}")
    where = ", ".join(sorted(lacking)[:5])
    if registry and first != "localhost":
        what = f"the sidecar's image is {seen.sidecar}; to be pulled by {where}"
        return Finding(SIDECAR, "good", what)
    what = f"the sidecar's image {seen.sidecar} names no registry, and is not on {where}"
    mend = (
        "push it to a registry and name it there: ROVER_SIDECAR_IMAGE in the ConfigMap "
        "rover-kf-controller (and in your environment, for rover-kf patch), or load it on the nodes"
    )
    return Finding(SIDECAR, "warning", what, mend)


def _held(node: object, image: str) -> bool:
    """Whether a node lists an image; kubelets list their fifty largest."""
    status = node["status"] if isinstance(node, dict) else {}
    known = {name for item in status.get("images") or () for name in item.get("names") or ()}
    tagged = image if ":" in image.rsplit("/", 1)[-1] else f"{image}:latest"
    return any(name == tagged or name.endswith(f"/{tagged}") for name in known)
