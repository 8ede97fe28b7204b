# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Claims of a test: on a folder of this machine, or on what a storage class provides."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from testcluster.trainer import USER

NAMESPACE_LABEL = "rover-kf.test/namespace"
"""On what the tests themselves put beside a job, and on PersistentVolumes: for which namespace."""

Object = dict[str, Any]
_SIZE = {"storage": "1Gi"}


def folder(namespace: str, claim: str, path: pathlib.Path, mode: str) -> list[Object]:
    """PersistentVolume and claim for a folder of this machine; for nodes that see its files."""
    name = f"{namespace}-{claim}"
    spec = {"accessModes": [mode], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {NAMESPACE_LABEL: namespace}},
        "spec": {
            **spec,
            "capacity": _SIZE,
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": namespace, "name": claim},
            "hostPath": {"path": str(path), "type": "Directory"},
        },
    }
    return [volume, _claim(namespace, claim, {**spec, "volumeName": name})]


def shared(namespace: str, claim: str, path: pathlib.Path) -> list[Object]:
    """The same for a folder that every pod may write; made here."""
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, USER, USER)
    return folder(namespace, claim, path, "ReadWriteMany")


def provided(namespace: str, claim: str, storage_class: str) -> Object:
    """A claim that pods of all nodes may write, of that class or (empty) of the default one."""
    spec: Object = {"accessModes": ["ReadWriteMany"]}
    if storage_class:
        spec["storageClassName"] = storage_class
    return _claim(namespace, claim, spec)


def _claim(namespace: str, name: str, spec: Object) -> Object:
    labels = {NAMESPACE_LABEL: namespace}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {**spec, "resources": {"requests": _SIZE}},
    }
