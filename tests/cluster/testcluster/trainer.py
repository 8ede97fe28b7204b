# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer with Python and torch but no image of five gigabytes: it sees this machine's files.

The image is empty. A read-only PersistentVolume gives the pod the machine's root by parts: /usr,
the Python installation, the virtual environment, the scripts. A claim instead of a hostPath volume,
because the restricted pod-security profile refuses the latter and what we inject must work under
it.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from testcluster.images import TRAINER_IMAGE

HOST_CLAIM = "host-files"
CHECKPOINT_CLAIM = "checkpoints"
NAMESPACE_LABEL = "rover-kf.test/namespace"
"""On PersistentVolumes, which belong to no namespace: whose they are."""
SCRIPTS = "/scripts"
"""Where the pod finds the folder of scripts if its container names no working directory."""
TOOLS = "/tools"
"""Where the pod finds the folder of a test's own scripts."""
USER = 65532

Object = dict[str, Any]


def host_volume(namespace: str) -> list[Object]:
    """PersistentVolume and claim for the machine's files, read-only."""
    return _volume(namespace, HOST_CLAIM, pathlib.Path("/"), "ReadOnlyMany")


def shared_volume(
    namespace: str, folder: pathlib.Path, *, claim: str = CHECKPOINT_CLAIM
) -> list[Object]:
    """PersistentVolume and claim that every pod may write, kept in a folder of this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, USER, USER)
    return _volume(namespace, claim, folder, "ReadWriteMany")


def _volume(namespace: str, claim: str, path: pathlib.Path, mode: str) -> list[Object]:
    name = f"{namespace}-{claim}"
    spec = {"accessModes": [mode], "storageClassName": ""}
    size = {"storage": "1Gi"}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "labels": {NAMESPACE_LABEL: namespace}},
            "spec": {
                **spec,
                "capacity": size,
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": namespace, "name": claim},
                "hostPath": {"path": str(path), "type": "Directory"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": namespace},
            "spec": {**spec, "volumeName": name, "resources": {"requests": size}},
        },
    ]


def with_host_python(
    manifest: Mapping[str, Any],
    *,
    scripts: pathlib.Path,
    tools: pathlib.Path | None = None,
    environment: pathlib.Path | None = None,
) -> Object:
    """Return the PyTorchJob with an empty image and, in every replica, this machine's Python.

    Args:
        manifest: a PyTorchJob; not changed.
        scripts: folder of this machine, seen in the container's working directory (``/scripts``).
        tools: another folder, seen at ``/tools``.
        environment: virtual environment with torch; the one that has it here if None.
    """
    result = copy.deepcopy(dict(manifest))
    for replica in result["spec"]["pytorchReplicaSpecs"].values():
        pod = replica["template"]["spec"]
        container = next(item for item in pod["containers"] if item["name"] == "pytorch")
        adapt(pod, container, scripts=scripts, tools=tools, environment=environment)
    return result


def adapt(
    pod: Object,
    container: Object,
    *,
    scripts: pathlib.Path,
    tools: pathlib.Path | None = None,
    environment: pathlib.Path | None = None,
) -> None:
    """Do the same to one pod specification, in place."""
    prefix = (environment or torch_environment()).resolve()
    base = _base_prefix(prefix)
    mounts = [
        _mount("/usr", "/usr"),
        *(_mount(f"/{name}", _real(f"/{name}")) for name in ("bin", "sbin", "lib", "lib64")),
    ]
    mounts += [
        _mount(str(path), str(path))
        for path in sorted({base, prefix})
        if not path.is_relative_to("/usr")
    ]
    place = container.setdefault("workingDir", SCRIPTS)
    mounts.append(_mount(place, str(scripts.resolve())))
    if tools is not None:
        mounts.append(_mount(TOOLS, str(tools.resolve())))
    container["image"] = TRAINER_IMAGE
    container["imagePullPolicy"] = "IfNotPresent"
    container.setdefault("volumeMounts", []).extend(
        [*mounts, {"name": "scratch", "mountPath": "/tmp"}]
    )
    # No /etc/passwd: what asks for the user's name or home finds them here.
    variables = {
        "PATH": f"{prefix}/bin:{base}/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "USER": "trainer",
        "LOGNAME": "trainer",
    }
    given = {item["name"] for item in container.setdefault("env", [])}
    container["env"] += [
        {"name": name, "value": value} for name, value in variables.items() if name not in given
    ]
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    pod["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    pod.setdefault("volumes", []).extend(
        [
            {
                "name": HOST_CLAIM,
                "persistentVolumeClaim": {"claimName": HOST_CLAIM, "readOnly": True},
            },
            {"name": "scratch", "emptyDir": {}},
        ]
    )


def torch_environment() -> pathlib.Path:
    """The virtual environment that torch is installed in; not always the one that runs."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("torch is not installed: `make venv`")
    return next(
        path for path in pathlib.Path(found.origin).parents if (path / "pyvenv.cfg").exists()
    )


def _mount(place: str, source: str) -> Object:
    return {"name": HOST_CLAIM, "mountPath": place, "subPath": source.lstrip("/"), "readOnly": True}


def _real(path: str) -> str:
    # /lib is a link to /usr/lib here and a folder elsewhere; a subPath must not be a link.
    return os.path.realpath(path)


def _base_prefix(environment: pathlib.Path) -> pathlib.Path:
    """Python installation that a virtual environment stands on."""
    for line in (environment / "pyvenv.cfg").read_text().splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home":
            return pathlib.Path(value.strip()).parent.resolve()
    raise ValueError(f"{environment} is no virtual environment: pyvenv.cfg names no home")
