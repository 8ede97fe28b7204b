# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Argo's kind of object, with which a run of a pipeline goes; nothing here runs one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from testcluster.commands import Kubectl
from testcluster.objects import Object, apply, get
from testcluster.step_pod import WORKFLOW

_CRD = "workflows.argoproj.io"


@contextlib.contextmanager
def known(cluster: Kubectl) -> Iterator[None]:
    """While the API server knows Workflows; where it did before, it still does afterwards."""
    if _CRD in cluster.kubectl("get", "crd", "-o", "name"):
        yield
        return
    group, version = WORKFLOW.split("/")
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True}
    spec = {
        "group": group,
        "scope": "Namespaced",
        "names": {"kind": "Workflow", "plural": "workflows", "singular": "workflow"},
        "versions": [{**served, "schema": {"openAPIV3Schema": anything}}],
    }
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    apply(cluster, [{**kind, "metadata": {"name": _CRD}, "spec": spec}])
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{_CRD}", "--timeout=60s")
    yield
    cluster.kubectl("delete", "crd", _CRD)


def made(cluster: Kubectl, namespace: str, name: str) -> Object:
    """A suspended Workflow, as the API server has it."""
    metadata = {"name": name, "namespace": namespace}
    workflow = {"apiVersion": WORKFLOW, "kind": "Workflow", "metadata": metadata}
    apply(cluster, [{**workflow, "spec": {"suspend": True}}])
    return get(cluster, namespace, "workflow", name)
