# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job without a manifest: a script, how many replicas, where; made into a PyTorchJob; pure."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import secrets
from collections.abc import Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.api.policy import OBJECT_NAME
from rover_kf.client import script_files
from rover_kf.injection import storage_mount
from rover_kf.job_kinds.pytorchjob.kind import PYTORCHJOB

WORKSPACE, CHECKPOINTS = "/workspace", "/checkpoints"
"""Where pods find the script, and a claim for checkpoints."""
CLAIM = "claim:"
GPU = "nvidia.com/gpu"
_NAME_LETTERS = 50
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_REPLICAS = re.compile(r"^(\d+)(?::(\d+))?$")


@dataclasses.dataclass(frozen=True, slots=True)
class Resources:
    """Of one replica, as Kubernetes writes them; empty: not stated."""

    cpu: str = ""
    memory: str = ""
    gpu: str = ""

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any] | None) -> Resources:
        """From kubeflow's words: ``{"cpu": 2, "memory": "4Gi", "gpu": 1}``.

        Raises:
            InputError: another word.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        told = {("gpu" if key == GPU else key): str(value) for key, value in (given or {}).items()}
        unknown = sorted(set(told) - known)
        if unknown:
            raise errors.InputError(
                f"resources_per_worker has {unknown[0]!r}; allowed: {', '.join(sorted(known))}"
            )
        return cls(**told)

    @property
    def manifest(self) -> dict[str, Any]:
        """Requests and limits; a limit on cores would only slow training down."""
        limits = {"memory": self.memory, GPU: self.gpu}
        requests = {"cpu": self.cpu, **limits}
        return {
            key: {name: value for name, value in amounts.items() if value}
            for key, amounts in (("requests", requests), ("limits", limits))
            if any(amounts.values())
        }


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingSpec:
    """What is asked for."""

    script: pathlib.Path
    """Of this machine."""
    name: str
    min_replicas: int = 1
    max_replicas: int = 1
    start: int = 0
    """Replicas at first; 0: the most."""
    arguments: tuple[str, ...] = ()
    """Of the script."""
    namespace: str = "default"
    processes: int = 1
    """Training processes of a replica."""
    image: str = ""
    """With Python and torch; embedded jobs need none."""
    resources: Resources = Resources()
    checkpoints: str = ""
    """A folder of this machine (embedded), ``claim:NAME``, a URL of an object store, or empty."""
    policy: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Annotations, also without their prefix, such as ``{"checkpoint.every": "50"}``."""


def parse_replicas(text: str | int) -> tuple[int, int]:
    """Fewest and most replicas of ``1:4``, or of ``4``, which is 4 and 4.

    Raises:
        InputError: it is something else.
    """
    match = _REPLICAS.match(str(text))
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most:
        raise errors.InputError(
            f"replicas are {str(text)!r}; allowed: a number such as 4, or fewest and most, 1:4"
        )
    return least, most


def unique_name(stem: str) -> str:
    """A name for a job, of a script's or function's, that no other job has."""
    letters = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if not letters[:1].isalpha():
        letters = f"train-{letters}"
    return f"{letters[:_NAME_LETTERS].rstrip('-')}-{secrets.token_hex(2)}"


def make_embedded_job(spec: TrainingSpec) -> Manifest:
    """The job for this machine: its script is found where it is.

    Raises:
        InputError: there is no such script, or checkpoints would go to a claim of a cluster or to
            an object store.
    """
    if not spec.script.is_file():
        raise errors.InputError(f"{spec.script} is no file; allowed: a Python script")
    container = {
        "name": names.PYTORCH_CONTAINER,
        "image": spec.image or "embedded",
        "command": ["torchrun", str(spec.script.absolute()), *spec.arguments],
    }
    path = spec.checkpoints
    if path.startswith(CLAIM) and not spec.image:
        raise errors.InputError(
            f"checkpoints go to {path!r}, which a cluster has; allowed here: a folder; or name an "
            "image (--image), which makes it a job of the cluster"
        )
    if path.startswith(CLAIM):
        return _make_job(spec, *_mount_claim(container, path))
    if _URL.match(path):
        raise errors.InputError(
            f"checkpoints go to {_redact(path)}; allowed here: a folder, for an embedded "
            "run has no "
            "Secret with an object store's credentials; or name an image (--image), which makes it "
            "a job of the cluster"
        )
    if path:
        path = os.path.realpath(pathlib.Path(path).expanduser())  # policy takes no ..
    return _make_job(spec, container, (), path)


def make_cluster_job(spec: TrainingSpec) -> Manifest:
    """The job for a cluster: its script comes out of a ConfigMap of the job's own name.

    Raises:
        InputError: there is no image, or checkpoints would go to a folder of this machine.
    """
    if not spec.image:
        raise errors.InputError("no image; allowed: --image with Python >= 3.10 and torch in it")
    path = spec.checkpoints
    if path and not path.startswith(CLAIM) and not storage_mount.is_url(path):
        raise errors.InputError(
            f"checkpoints go to {_redact(path)}; allowed: {CLAIM}NAME of a PersistentVolumeClaim, "
            "or a URL such as s3://bucket/folder: pods do not see this machine's folders"
        )
    container: dict[str, Any] = {
        "name": names.PYTORCH_CONTAINER,
        "image": spec.image,
        "command": ["torchrun", spec.script.name, *spec.arguments],
        "workingDir": WORKSPACE,
        "volumeMounts": [{"name": "script", "mountPath": WORKSPACE}],
    }
    volumes: tuple[Any, ...] = ({"name": "script", "configMap": {"name": spec.name}},)
    if path.startswith(CLAIM):
        container, claimed, path = _mount_claim(container, path)
        volumes += claimed
    return _make_job(spec, container, volumes, path)


def make_script_config_map(spec: TrainingSpec, owner_uid: str = "") -> dict[str, Any]:
    """The ConfigMap with the script and its own modules; it goes with the job if that is named.

    Raises:
        InputError: a file of it cannot be read, or all are too large.
    """
    metadata: dict[str, Any] = {"name": spec.name, "namespace": spec.namespace}
    if owner_uid:
        owner = {"kind": PYTORCHJOB.kind, "name": spec.name, "uid": owner_uid}
        metadata["ownerReferences"] = [{"apiVersion": PYTORCHJOB.api_version, **owner}]
    data = script_files.collect_files(spec.script)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _redact(path: str) -> str:
    """A path, or a URL as far as no key can be in it."""
    found = _URL.match(path)
    return f"{found[0]}…" if found else repr(path)


def _mount_claim(container: Mapping[str, Any], path: str) -> tuple[Any, tuple[Any, ...], str]:
    mount = {"name": "checkpoints", "mountPath": CHECKPOINTS}
    mounts = [*container.get("volumeMounts", ()), mount]
    name = path.removeprefix(CLAIM)
    if not re.match(OBJECT_NAME, name):
        raise errors.InputError(
            f"checkpoints go to {path!r}; allowed: {CLAIM}NAME of a PersistentVolumeClaim; a "
            f"folder of it is told by the policy checkpoint.path={CHECKPOINTS}/FOLDER"
        )
    volume = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": name}}
    return {**container, "volumeMounts": mounts}, (volume,), CHECKPOINTS


def _make_job(
    spec: TrainingSpec, container: Mapping[str, Any], volumes: tuple[Any, ...], path: str
) -> Manifest:
    start = spec.start or spec.max_replicas
    if not spec.min_replicas <= start <= spec.max_replicas:
        raise errors.InputError(
            f"{start} replicas at first; allowed: {spec.min_replicas} to {spec.max_replicas}"
        )
    mode = {"scaling.mode": "auto"} if spec.min_replicas < spec.max_replicas else {}
    stated = {key.removeprefix(names.PREFIX): value for key, value in spec.policy.items()}
    policy = {**mode, **({"checkpoint.path": path} if path else {}), **stated}
    resources = spec.resources.manifest
    trainer = {**container, **({"resources": resources} if resources else {})}
    pod = {"containers": [trainer], **({"volumes": list(volumes)} if volumes else {})}
    return make_pytorchjob(
        {"name": spec.name, "namespace": spec.namespace},
        policy,
        pod,
        sizes=(start, spec.min_replicas, spec.max_replicas),
        processes=spec.processes,
    )


def make_pytorchjob(
    metadata: Mapping[str, Any],
    policy: Mapping[str, object],
    pod: Mapping[str, Any],
    *,
    sizes: tuple[int, int, int],
    processes: int,
) -> Manifest:
    """An elastic job of Workers.

    Args:
        metadata: its name, and its namespace if it has one.
        policy: annotations without their prefix.
        pod: spec of each pod.
        sizes: replicas at first, fewest, most.
        processes: of training, in each replica.
    """
    start, low, high = sizes
    # A failing script ends the job at once, a lost pod is made anew.
    worker = {"replicas": start, "restartPolicy": "ExitCode", "template": {"spec": pod}}
    return {
        "apiVersion": PYTORCHJOB.api_version,
        "kind": PYTORCHJOB.kind,
        "metadata": {
            **metadata,
            "labels": {names.INJECT_LABEL: "true"},
            "annotations": {f"{names.PREFIX}{key}": str(value) for key, value in policy.items()},
        },
        "spec": {
            "nprocPerNode": str(processes),
            "elasticPolicy": {"minReplicas": low, "maxReplicas": high},
            PYTORCHJOB.specs: {"Worker": worker},
        },
    }
