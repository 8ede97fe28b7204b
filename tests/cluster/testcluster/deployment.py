# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The controller on a test cluster: its overlay with local images, its coming and going."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Protocol

import yaml

from testcluster.images import SIDECAR_IMAGE
from testcluster.layout import Image

DEPLOYMENT = "rover-kf-controller"


class Kubectl(Protocol):
    """A cluster of either kind."""

    def kubectl(self, *words: str, text: str | None = None, timeout: float = 120) -> str:
        """Run kubectl against it."""


def overlay(folder: pathlib.Path, base: pathlib.Path, images: Sequence[Image]) -> pathlib.Path:
    """Write a kustomization over ``base`` that uses local images; returns its folder.

    The images' keys stand in an annotation, so that new ones under the old name are rolled out.
    """
    settings = {"data": {"ROVER_SIDECAR_IMAGE": SIDECAR_IMAGE}}
    named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": DEPLOYMENT}}
    built = {"rover-kf.test/images": " ".join(image.reference for image in images)}
    template = {"spec": {"template": {"metadata": {"annotations": built}}}}
    deployed = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": DEPLOYMENT}}
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(base, folder.resolve())],
        "images": [
            {"name": DEPLOYMENT, "newName": f"localhost/{DEPLOYMENT}", "newTag": "dev"},
        ],
        "patches": [
            {"patch": json.dumps({**named, **settings})},
            {"patch": json.dumps({**deployed, **template})},
        ],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return folder


def wait(cluster: Kubectl, namespace: str) -> None:
    """Wait until the deployment is rolled out."""
    words = ("-n", namespace, "rollout", "status", f"deploy/{DEPLOYMENT}", "--timeout=180s")
    cluster.kubectl(*words, timeout=200)


def scale(cluster: Kubectl, namespace: str, replicas: int) -> None:
    """Set the controller's replicas; returns when they are there, or gone."""
    cluster.kubectl("-n", namespace, "scale", f"deploy/{DEPLOYMENT}", f"--replicas={replicas}")
    if replicas:
        wait(cluster, namespace)
        return
    selector = "app.kubernetes.io/component=controller"
    words = ("-n", namespace, "wait", "pod", "-l", selector, "--for=delete", "--timeout=120s")
    cluster.kubectl(*words, timeout=140)
