# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The real Training Operator with its webhook, installed from its own manifests."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import yaml

from testcluster import binaries, images
from testcluster.commands import run

NAMESPACE, DEPLOYMENT = "kubeflow", "training-operator"


def render(kubectl: pathlib.Path, directory: pathlib.Path) -> pathlib.Path:
    """Write the operator's manifests for this cluster below ``directory``; returns the file.

    Changed are the image, the image of the init container that it gives to workers of Master-style
    jobs, and the probe's delays (it is ready in a second, stock asks after ten).
    """
    target = directory / f"training-operator-{binaries.TRAINING_OPERATOR}.yaml"
    source = binaries.module_directory("trainingoperator", "github.com/kubeflow/training-operator")
    copy = (
        directory / "training-operator"
    )  # the module cache is read-only, kustomize wants to be beside its base
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source / "manifests", copy)
    documents = list(
        yaml.load_all(run([kubectl, "kustomize", copy / "overlays" / "standalone"]), _loader())
    )
    for document in documents:
        if document["kind"] == "Deployment":
            _adapt(document)
    target.write_text(
        yaml.dump_all(documents, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))
    )
    return target


def _adapt(deployment: dict[str, Any]) -> None:
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["image"] = images.OPERATOR_IMAGE
    container["args"] = [f"--pytorch-init-container-image={images.INIT_IMAGE}"]
    container["readinessProbe"] |= {"initialDelaySeconds": 1, "periodSeconds": 1}


def _loader() -> type[yaml.SafeLoader]:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)
