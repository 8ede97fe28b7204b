# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a manifest has the shape of a job at all; the first half of validation.

Everything after it may index without looking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import MAX_REPLICAS, Manifest
from rover_kf.job_kinds.job_kind import JobKind


def check_schema(manifest: Manifest, job_kind: JobKind, source: str) -> None:
    """Refuse a manifest in which the job's parts are missing or of the wrong type.

    Raises:
        ManifestError: naming key, value and what is allowed.
    """
    metadata = _mapping(manifest, "metadata", "metadata", source)
    if not isinstance(metadata.get("name") or metadata.get("generateName"), str):
        _refuse("metadata.name", metadata.get("name"), "the job's name", source)
    _check_metadata(metadata, "metadata", source)
    spec = _mapping(manifest, "spec", "spec", source)
    for key in ("runPolicy", "elasticPolicy"):
        _optional(spec, key, "spec", source)
    path = f"spec.{job_kind.specs}"
    for name, replica in _mapping(spec, job_kind.specs, path, source).items():
        if str(name).lower() not in job_kind.kinds:
            kinds = ", ".join(kind.capitalize() for kind in job_kind.kinds)
            _refuse(f"{path}.{name}", "a replica type", kinds, source)
        _check_replica(replica, f"{path}.{name}", job_kind, source)
    masters = job_kind.masters(manifest)
    if masters > 1:
        _refuse(f"{path}.Master.replicas", masters, "1", source)
    if masters + job_kind.workers(manifest) == 0:
        _refuse(path, sorted(spec[job_kind.specs]), "a Master or a Worker that trains", source)


def _check_replica(replica: object, path: str, job_kind: JobKind, source: str) -> None:
    if not isinstance(replica, Mapping):
        _refuse(path, replica, "a mapping", source)
    replicas = replica.get("replicas", 1)
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        _refuse(f"{path}.replicas", replicas, "a whole number, 1 or more", source)
    if replicas > MAX_REPLICAS:
        _refuse(f"{path}.replicas", replicas, f"{MAX_REPLICAS} at most", source)
    template = _mapping(replica, "template", f"{path}.template", source)
    if template.get("metadata") is not None:
        metadata = _mapping(template, "metadata", f"{path}.template.metadata", source)
        _check_metadata(metadata, f"{path}.template.metadata", source)
    pod = _mapping(template, "spec", f"{path}.template.spec", source)
    where = f"{path}.template.spec.containers"
    containers = _check_pod(pod, f"{path}.template.spec", source)
    known = [item["name"] for item in containers]
    if job_kind.container not in known:
        allowed = f"a list with a container named {job_kind.container}: the one that trains"
        _refuse(where, known or None, allowed, source)
    _check_trainer(containers[known.index(job_kind.container)], where, source)


def _check_metadata(metadata: Mapping[str, Any], path: str, source: str) -> None:
    for key in ("labels", "annotations"):
        if metadata.get(key) is not None:
            for name, value in _mapping(metadata, key, f"{path}.{key}", source).items():
                if not isinstance(name, str):
                    _refuse(f"{path}.{key}", name, "names that are texts", source)
                # What is wrong with one of ours is said with what it may be (policy.py).
                if not isinstance(value, str) and not name.startswith(names.PREFIX):
                    _refuse(f"{path}.{key}[{name}]", value, "text in quotes", source)


def _check_pod(pod: Mapping[str, Any], path: str, source: str) -> Sequence[Any]:
    """Its lists and what stands in them; returns the containers."""
    containers = _named(pod, "containers", f"{path}.containers", source)
    first = _named(pod, "initContainers", f"{path}.initContainers", source)
    _optional(pod, "securityContext", path, source)
    for key, listed in (("containers", containers), ("initContainers", first)):
        for item in listed:
            place = f"{path}.{key}[{item['name']}]"
            _optional(item, "securityContext", place, source)
            _check_line(item, place, source)
    for volume in _named(pod, "volumes", f"{path}.volumes", source):
        place = f"{path}.volumes[{volume['name']}]"
        for kind in volume.keys() - {"name"}:
            _optional(volume, kind, place, source)
        _check_sources(volume.get("projected") or {}, f"{place}.projected.sources", source)
    return containers


def _check_sources(projected: Mapping[str, Any], path: str, source: str) -> None:
    for index, item in enumerate(_list(projected, "sources", path, source)):
        if not isinstance(item, Mapping):
            _refuse(f"{path}[{index}]", item, "a mapping", source)
        _optional(item, "serviceAccountToken", f"{path}[{index}]", source)


def _check_line(container: Mapping[str, Any], path: str, source: str) -> None:
    for key in ("command", "args"):
        line = container.get(key)
        if line is not None and not (
            isinstance(line, list) and all(isinstance(word, str) for word in line)
        ):
            _refuse(f"{path}.{key}", line, "a list of texts (quote numbers)", source)


def _check_trainer(trainer: Mapping[str, Any], where: str, source: str) -> None:
    path = f"{where}[{trainer['name']}]"
    _named(trainer, "env", f"{path}.env", source)
    for index, mount in enumerate(_list(trainer, "volumeMounts", f"{path}.volumeMounts", source)):
        if not isinstance(mount, Mapping) or not isinstance(mount.get("mountPath"), str):
            _refuse(f"{path}.volumeMounts[{index}]", mount, "name and mountPath", source)
    if trainer.get("resources") is not None:
        resources = _mapping(trainer, "resources", f"{path}.resources", source)
        for key in ("limits", "requests"):
            if resources.get(key) is not None:
                _mapping(resources, key, f"{path}.resources.{key}", source)


def _named(owner: Mapping[str, Any], key: str, path: str, source: str) -> Sequence[Any]:
    found = _list(owner, key, path, source)
    for index, item in enumerate(found):
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            _refuse(f"{path}[{index}]", item, "a mapping with a name", source)
    return found


def _list(owner: Mapping[str, Any], key: str, path: str, source: str) -> Sequence[Any]:
    found = owner.get(key)
    if found is not None and not isinstance(found, list):
        _refuse(path, found, "a list", source)
    return found or ()


def _optional(owner: Mapping[str, Any], key: str, path: str, source: str) -> None:
    if owner.get(key) is not None:
        _mapping(owner, key, f"{path}.{key}", source)


def _mapping(owner: Mapping[str, Any], key: str, path: str, source: str) -> Mapping[str, Any]:
    found = owner.get(key)
    if not isinstance(found, Mapping):
        _refuse(path, found, "a mapping", source)
    return found


def _refuse(key: str, value: object, allowed: str, source: str) -> NoReturn:
    raise errors.ManifestError(key, value, allowed=allowed, source=source)
