# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer with Python and torch but no image of five gigabytes: it sees this machine's files.

A TFJob's has TensorFlow's environment instead of torch's.

The image is empty. A read-only PersistentVolume gives the pod the machine's root by parts: /usr,
the Python installation, the virtual environment, the scripts. A claim instead of a hostPath volume,
because the restricted pod-security profile refuses the latter and what we inject must work under
it.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from testcluster import storage, tensorflow_environment, trainer
from testcluster.images import TRAINER_IMAGE

HOST_CLAIM = "host-files"

Object = dict[str, Any]


def host_volume(namespace: str) -> list[Object]:
    """PersistentVolume and claim for the machine's files, read-only."""
    return storage.folder(namespace, HOST_CLAIM, pathlib.Path("/"), "ReadOnlyMany")


def with_host_python(
    manifest: Mapping[str, Any], *, scripts: pathlib.Path, tools: pathlib.Path | None = None
) -> Object:
    """Return the job with an empty image and, in every replica, this machine's Python.

    Args:
        manifest: a PyTorchJob or TFJob; not changed.
        scripts: folder of this machine, seen in the container's working directory (``/scripts``).
        tools: another folder, seen at ``/tools``.
    """
    tensorflow = manifest["kind"] == "TFJob"
    prefix = tensorflow_environment.folder() if tensorflow else torch_environment()
    job, found = trainer.copied(manifest)
    for pod, container in found:
        trainer.prepare(pod, container, image=TRAINER_IMAGE, path=search_path(prefix))
        given = {
            place: str(folder.resolve())
            for place, folder in trainer.places(container, scripts, tools)
        }
        container["volumeMounts"] += [
            _mount(place, source) for place, source in {**folders(prefix), **given}.items()
        ]
        claim = {"claimName": HOST_CLAIM, "readOnly": True}
        pod["volumes"].append({"name": HOST_CLAIM, "persistentVolumeClaim": claim})
    return job


def search_path(environment: pathlib.Path) -> str:
    """``PATH`` of a container that sees the folders of a virtual environment."""
    prefix = environment.resolve()
    return f"{prefix}/bin:{_base_prefix(prefix)}/bin:/usr/bin:/bin"


def folders(environment: pathlib.Path) -> dict[str, str]:
    """A virtual environment and all that it needs: where it is to be seen, and where it is."""
    prefix = environment.resolve()
    # /lib is a link to /usr/lib here and a folder elsewhere; a subPath must not be a link.
    system = {f"/{name}": os.path.realpath(f"/{name}") for name in ("bin", "sbin", "lib", "lib64")}
    own = [path for path in sorted({prefix, _base_prefix(prefix)}) if not _in_usr(path)]
    return {"/usr": "/usr", **system, **{str(path): str(path) for path in own}}


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


def _in_usr(path: pathlib.Path) -> bool:
    return path.is_relative_to("/usr")


def _base_prefix(environment: pathlib.Path) -> pathlib.Path:
    """Python installation that a virtual environment stands on."""
    for line in (environment / "pyvenv.cfg").read_text().splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home":
            return pathlib.Path(value.strip()).parent.resolve()
    raise ValueError(f"{environment} is no virtual environment: pyvenv.cfg names no home")
