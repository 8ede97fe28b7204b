# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is refused before anything starts; used by ``cluster`` when a job is created or patched.

The Training Operator's own webhook rules, and what one machine cannot give: a script that is not
there, a volume or a variable that only a cluster has. Pure but for looking whether files exist.
"""

from __future__ import annotations

import os
import pathlib
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from rover_kf import errors
from rover_kf.api.jobs import Manifest
from rover_kf.job_kinds.pytorchjob.kind import PYTORCHJOB

SPECS = PYTORCHJOB.specs
_VOLUMES = ("emptyDir", "persistentVolumeClaim", "hostPath", "projected", "downwardAPI")


def validate(manifest: Manifest, folder: pathlib.Path) -> None:
    """Refuse a manifest that cannot run here.

    Raises:
        ManifestError: with the key, the value and what is allowed.
    """
    _need(manifest, "kind", manifest.get("kind"), (PYTORCHJOB.kind,))
    version = PYTORCHJOB.api_version
    _need(manifest, "apiVersion", manifest.get("apiVersion"), (version,))
    name = manifest.get("metadata", {}).get("name")
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", str(name or "")):
        _refuse(manifest, "metadata.name", name, "lower-case letters, digits and -, at most 63")
    spec = manifest.get("spec") or {}
    replicas = spec.get(SPECS)
    if not isinstance(replicas, Mapping) or not replicas:
        _refuse(manifest, f"spec.{SPECS}", replicas, "Master, Worker or both")
    for kind, replica in replicas.items():
        if kind not in ("Master", "Worker"):
            _refuse(manifest, f"spec.{SPECS}.{kind}", kind, "Master or Worker")
        _check_replica(manifest, f"spec.{SPECS}.{kind}", kind, replica, folder)
    if spec.get("elasticPolicy") and "Worker" not in replicas:
        _refuse(manifest, f"spec.{SPECS}.Worker", None, "Worker replicas beside an elasticPolicy")


def script_of(container: Mapping[str, Any]) -> str | None:
    """The Python script that a container runs from this machine's files.

    None if it runs a module or a line of code, or a file on one of its volumes, which may appear
    there only when the job runs.
    """
    mounts = container.get("volumeMounts") or []
    for word in (*(container.get("command") or []), *(container.get("args") or [])):
        if word in ("-m", "-c"):
            return None
        if str(word).endswith(".py") and not word.startswith("-"):
            if not any(_below(word, mount) for mount in mounts):
                return str(word)
            if posixpath.basename(word) != "rover_run.py":  # what our launcher starts comes after
                return None
    return None


def _check_replica(
    manifest: Manifest, key: str, kind: str, replica: Any, folder: pathlib.Path
) -> None:
    count = replica.get("replicas", 1)
    if not isinstance(count, int) or count < 1 or (kind == "Master" and count != 1):
        allowed = "1" if kind == "Master" else "a whole number from 1"
        _refuse(manifest, f"{key}.replicas", count, allowed)
    pod = replica.get("template", {}).get("spec", {})
    containers = pod.get("containers") or []
    if not any(c.get("name") == PYTORCHJOB.container and c.get("image") for c in containers):
        found = [c.get("name") for c in containers]
        allowed = f"a container named {PYTORCHJOB.container} with an image"
        _refuse(manifest, f"{key}.template.spec.containers", found, allowed)
    for index, volume in enumerate(pod.get("volumes") or []):
        source = next((name for name in volume if name != "name"), "emptyDir")
        if source not in _VOLUMES:
            allowed = f"{', '.join(_VOLUMES)} (embedded)"
            _refuse(manifest, f"{key}.template.spec.volumes[{index}]", source, allowed)
        _check_volume(manifest, f"{key}.template.spec.volumes[{index}]", volume)
    for place, container in _containers(pod):
        _check_container(manifest, f"{key}.template.spec.{place}", container, pod, folder)


def _check_volume(manifest: Manifest, key: str, volume: Mapping[str, Any]) -> None:
    """A hostPath names a folder of this machine; one that is not there has to be made."""
    if "hostPath" in volume:
        path = pathlib.Path(volume["hostPath"]["path"])
        place = next(parent for parent in (path, *path.parents) if parent.exists())
        if place != path and not os.access(place, os.W_OK):
            allowed = f"a folder that is there or can be made: {place} cannot be written"
            _refuse(manifest, f"{key}.hostPath.path", str(path), allowed)


def _check_container(
    manifest: Manifest, key: str, container: Mapping[str, Any], pod: Any, folder: pathlib.Path
) -> None:
    if not container.get("command") and not container.get("args"):
        _refuse(manifest, f"{key}.command", None, "a command: there is no image to take it from")
    for index, variable in enumerate(container.get("env") or []):
        source = variable.get("valueFrom") or {}
        if source and not set(source) & {"fieldRef", "resourceFieldRef"}:
            allowed = "value, valueFrom.fieldRef or valueFrom.resourceFieldRef (embedded)"
            _refuse(manifest, f"{key}.env[{index}].valueFrom", next(iter(source)), allowed)
    if container.get("envFrom"):
        _refuse(
            manifest, f"{key}.envFrom", container["envFrom"], "env (embedded has no ConfigMaps)"
        )
    volumes = {volume["name"] for volume in pod.get("volumes") or []}
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            allowed = f"one of the pod's volumes: {', '.join(sorted(volumes)) or 'it has none'}"
            _refuse(manifest, f"{key}.volumeMounts[{index}].name", mount.get("name"), allowed)
    script = script_of(container)
    place = work_folder(container, folder)
    if script is not None and not (place / script).is_file():
        field = "args" if script in (container.get("args") or []) else "command"
        _refuse(manifest, f"{key}.{field}", script, f"a script that exists in {place}")


def work_folder(container: Mapping[str, Any], folder: pathlib.Path) -> pathlib.Path:
    """Take workingDir if it exists here, else the manifest's own folder."""
    wanted = container.get("workingDir")
    return pathlib.Path(wanted) if wanted and pathlib.Path(wanted).is_dir() else folder


def _containers(pod: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for place in ("initContainers", "containers"):
        for index, container in enumerate(pod.get(place) or []):
            yield f"{place}[{index}]", container


def _below(path: str, mount: Mapping[str, Any]) -> bool:
    root = mount["mountPath"].rstrip("/")
    return path == root or path.startswith(f"{root}/")


def _need(manifest: Manifest, key: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        _refuse(manifest, key, value, " or ".join(allowed))


def _refuse(manifest: Manifest, key: str, value: object, allowed: str) -> NoReturn:
    source = f"{manifest.get('kind')} {(manifest.get('metadata') or {}).get('name')}"
    raise errors.ManifestError(key, value, allowed=allowed, source=source)
