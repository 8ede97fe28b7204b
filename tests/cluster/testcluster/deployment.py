# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The controller on a test cluster: its overlay with the images to test, its coming and going."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence

import yaml

from testcluster import admission
from testcluster.commands import Kubectl
from testcluster.layout import Image

NAMESPACE = "rover-kf-system"
DEPLOYMENT = "rover-kf-controller"
SIDECAR, STEPS = "rover-kf-sidecar", "rover-kf-steps"


@dataclasses.dataclass(frozen=True, slots=True)
class ProjectImages:
    """Where a cluster finds the images of controller and sidecar.

    Args:
        prefix: registry and folder, e.g. ``localhost``.
        tag: of both.
        made_of: what is in them; a change of it is rolled out though the names stay.
    """

    prefix: str
    tag: str
    made_of: str = ""

    @classmethod
    def parse(cls, text: str) -> ProjectImages:
        """From ``PREFIX:TAG``.

        Raises:
            ValueError: it is something else.
        """
        prefix, _, tag = text.rpartition(":")
        if not prefix or not tag or "/" in tag:
            raise ValueError(
                f"{text!r} is not PREFIX:TAG, which stands for PREFIX/{DEPLOYMENT}:TAG and "
                f"PREFIX/{SIDECAR}:TAG (and PREFIX/{STEPS}:TAG for pipeline steps)"
            )
        return cls(prefix, tag)

    def named(self, program: str) -> str:
        """The image of one of the project's programs."""
        return f"{self.prefix}/{program}:{self.tag}"

    @classmethod
    def built(cls, images: Sequence[Image]) -> ProjectImages:
        """Those that Images.project has built."""
        return cls("localhost", "dev", " ".join(image.reference for image in images))


def overlay(folder: pathlib.Path, base: pathlib.Path, images: ProjectImages) -> pathlib.Path:
    """Write a kustomization over ``base`` that uses these images; returns its folder."""
    settings = {"data": {"ROVER_SIDECAR_IMAGE": images.named(SIDECAR)}}
    named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": DEPLOYMENT}}
    built = {"rover-kf.test/images": f"{images.prefix}:{images.tag} {images.made_of}"}
    template = {"spec": {"template": {"metadata": {"annotations": built}}}}
    deployed = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": DEPLOYMENT}}
    controller = {"newName": f"{images.prefix}/{DEPLOYMENT}", "newTag": images.tag}
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(base, folder.resolve())],
        "images": [{"name": DEPLOYMENT, **controller}],
        "patches": [
            {"patch": json.dumps({**named, **settings})},
            {"patch": json.dumps({**deployed, **template})},
        ],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return folder


def wait(cluster: Kubectl) -> None:
    """Wait until the deployment is rolled out and jobs are injected.

    Raises:
        ClusterError: neither in three minutes, or no injected job in two more.
    """
    words = ("-n", NAMESPACE, "rollout", "status", f"deploy/{DEPLOYMENT}", "--timeout=180s")
    cluster.kubectl(*words, timeout=200)
    admission.wait(cluster, injected=True)


def is_there(cluster: Kubectl) -> bool:
    """Whether the controller is deployed."""
    return bool(cluster.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found"))


def scale(cluster: Kubectl, replicas: int) -> None:
    """Set the controller's replicas; returns when they are there, or gone."""
    cluster.kubectl("-n", NAMESPACE, "scale", f"deploy/{DEPLOYMENT}", f"--replicas={replicas}")
    if replicas:
        wait(cluster)
        return
    selector = "app.kubernetes.io/component=controller"
    words = ("-n", NAMESPACE, "wait", "pod", "-l", selector, "--for=delete", "--timeout=120s")
    cluster.kubectl(*words, timeout=140)
