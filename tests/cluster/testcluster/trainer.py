# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a test's trainer is given on any cluster: scripts, a user, a place to write.

Where Python and torch come from is another matter: host_python.py on a cluster of our own,
trainer_image.py on any other.
"""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

SCRIPTS = "/scripts"
"""Where the pod finds the folder of scripts if its container names no working directory."""
TOOLS = "/tools"
"""Where the pod finds the folder of a test's own scripts."""
USER = 65532
_PLACES = {
    "PyTorchJob": ("pytorchReplicaSpecs", "pytorch"),
    "TFJob": ("tfReplicaSpecs", "tensorflow"),
}
"""Of replica specs, and the name of the container that trains."""

Object = dict[str, Any]


class Trainer(Protocol):
    """Gives a job an image and what its trainers need."""

    def __call__(
        self,
        manifest: Mapping[str, Any],
        *,
        scripts: pathlib.Path,
        tools: pathlib.Path | None = None,
    ) -> Object:
        """Return the job ready to be applied.

        Args:
            manifest: a PyTorchJob or TFJob; not changed.
            scripts: folder seen in the container's working directory (``/scripts``).
            tools: another folder, seen at ``/tools``.
        """


def copied(manifest: Mapping[str, Any]) -> tuple[Object, list[tuple[Object, Object]]]:
    """A copy of a job; in it every replica's pod with the container that trains."""
    job = copy.deepcopy(dict(manifest))
    specs, name = _PLACES[job["kind"]]
    pods = [replica["template"]["spec"] for replica in job["spec"][specs].values()]
    return job, [(pod, _named(pod, name)) for pod in pods]


def prepare(pod: Object, container: Object, *, image: str, path: str = "") -> None:
    """Set what trainers of both kinds have: image, user, ``/tmp``, the restricted profile.

    Args:
        pod: changed in place.
        container: the trainer in it.
        image: what it runs.
        path: its ``PATH``; the image's own if empty.
    """
    container["image"] = image
    container["imagePullPolicy"] = "IfNotPresent"
    container.setdefault("volumeMounts", []).append({"name": "scratch", "mountPath": "/tmp"})
    pod.setdefault("volumes", []).append({"name": "scratch", "emptyDir": {}})
    given = {item["name"] for item in container.setdefault("env", [])}
    container["env"] += [item for item in _environment(path) if item["name"] not in given]
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


def places(
    container: Object, scripts: pathlib.Path, tools: pathlib.Path | None
) -> Iterator[tuple[str, pathlib.Path]]:
    """Where in the container which folder is to be seen; names its working directory."""
    yield container.setdefault("workingDir", SCRIPTS), scripts
    if tools is not None:
        yield TOOLS, tools


def _named(pod: Object, name: str) -> Object:
    return next(item for item in pod["containers"] if item["name"] == name)


def _environment(path: str) -> list[Object]:
    # The user is not in /etc/passwd: what asks for its name or home finds them here.
    variables = {"HOME": "/tmp", "USER": "trainer", "LOGNAME": "trainer"}
    if path:
        variables["PATH"] = path
    return [{"name": name, "value": value} for name, value in variables.items()]
