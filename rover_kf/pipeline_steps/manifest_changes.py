# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Manifests of component functions, and with a task's own settings or a trial's arguments.

With a task's settings ``task.set_memory_limit("8Gi")``, ``kubernetes.mount_pvc(task, …)`` and the
like speak of the job, as they would of any other task. What the task states wins over the manifest.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.client.manifests import change_pods, change_trainers
from rover_kf.client.script_manifest import Resources, make_pytorchjob
from rover_kf.injection.inject import is_injected
from rover_kf.injection.keyed_lists import replace_item


@dataclasses.dataclass(frozen=True, slots=True)
class ComponentFunction:
    """What shall run in each training process, and how many of them."""

    function: str
    source: str
    """Python that defines it."""
    image: str
    """With Python >= 3.10, torch and what the function imports."""
    min_replicas: int = 1
    max_replicas: int = 1
    processes: int = 1
    """Training processes of a replica."""
    cpu: str = ""
    memory: str = ""
    gpus: int = 0
    policy: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Annotations without their prefix, such as ``{"checkpoint.every": "50"}``."""

    def manifest(self, parameters: Mapping[str, Any]) -> Manifest:
        """The job that calls the function with these parameters in every training process."""
        order = {"source": self.source, "function": self.function, "parameters": dict(parameters)}
        variable = {"name": names.ENV_COMPONENT, "value": json.dumps(order, sort_keys=True)}
        container = {
            "name": names.PYTORCH_CONTAINER,
            "image": self.image,
            "command": ["python", "-m", "rover_kf.trainer.component"],
            "env": [variable],
            "resources": Resources(self.cpu, self.memory, str(self.gpus or "")).manifest,
        }
        return make_pytorchjob(
            {"name": self.function.replace("_", "-")},
            self.policy,
            {"containers": [container]},
            sizes=(self.max_replicas, self.min_replicas, self.max_replicas),
            processes=self.processes,
        )


Settings = Mapping[str, Any]
"""Fields of kfp's ``dsl.TaskConfig``; absent or None where the task states nothing."""


def apply_settings(manifest: Manifest, settings: Settings) -> Manifest:
    """Put a task's settings into every replica's pod.

    ``resources``, ``env`` and ``volume_mounts`` go to the trainer; ``volumes``, ``tolerations``,
    ``node_selector`` and ``affinity`` to the pod.
    """
    stated = {key: _restore_integers(value) for key, value in settings.items() if value}
    if not stated:
        return manifest
    return change_pods(manifest, lambda pod, trainer: _pod(pod, trainer, stated))


def _pod(pod: Mapping[str, Any], trainer: str, stated: Settings) -> dict[str, Any]:
    made = replace_item(pod, "containers", trainer, lambda item: _container(item, stated))
    if volumes := stated.get("volumes"):
        made["volumes"] = _merge_named(pod.get("volumes"), volumes, "name")
    if tolerations := stated.get("tolerations"):
        made["tolerations"] = [*(pod.get("tolerations") or ()), *tolerations]
    if selector := stated.get("node_selector"):
        made["nodeSelector"] = {**(pod.get("nodeSelector") or {}), **selector}
    if affinity := stated.get("affinity"):
        made["affinity"] = {**(pod.get("affinity") or {}), **affinity}
    return made


def _container(container: Mapping[str, Any], stated: Settings) -> dict[str, Any]:
    made = dict(container)
    if resources := stated.get("resources"):
        given = container.get("resources") or {}
        made["resources"] = {
            **given,
            **{
                kind: {**(given.get(kind) or {}), **(resources.get(kind) or {})}
                for kind in ("requests", "limits")
                if resources.get(kind)
            },
        }
    if env := stated.get("env"):
        made["env"] = _merge_named(container.get("env"), env, "name")
    if mounts := stated.get("volume_mounts"):
        made["volumeMounts"] = _merge_named(container.get("volumeMounts"), mounts, "mountPath")
    return made


def _restore_integers(value: Any) -> Any:
    """Plain data whose whole numbers are integers again: pipelines pass them as floats."""
    if isinstance(value, Mapping):
        return {key: _restore_integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore_integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _merge_named(before: Any, more: Any, key: str) -> list[Any]:
    """Both lists, of two items of one name the later one."""
    taken = {item[key] for item in more}
    return [*(item for item in before or () if item[key] not in taken), *more]


_SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh")
_INLINE_SCRIPT = re.compile("-[a-z]*c")


def add_arguments(manifest: Manifest, arguments: str) -> Manifest:
    """Append arguments, split as by a shell, to the script's own.

    Raises:
        InputError: the manifest is patched, has no command to add to or a shell's, or a quote is
            open.
    """
    if is_injected(manifest):
        raise errors.InputError("the manifest is patched already: vary it before it is patched")
    try:
        words = shlex.split(arguments)
    except ValueError as cause:
        raise errors.InputError(f"arguments are {arguments!r}: {cause}") from cause
    return change_trainers(manifest, lambda trainer: _extend_command(trainer, words))


def _extend_command(container: Mapping[str, Any], words: list[str]) -> dict[str, Any]:
    key = "args" if container.get("args") else "command"
    if not container.get(key):
        raise errors.InputError(
            "the trainer's container states no command, so there is nothing to add arguments to"
        )
    if words:
        _check_shell([*(container.get("command") or ()), *(container.get("args") or ())])
    return {**container, key: [*container[key], *words]}


def _check_shell(line: Sequence[str]) -> None:
    """Refuse a shell's ``-c``: what is added would be the shell's own arguments, not the script's.

    A text that names them passes them on.
    """
    options = itertools.takewhile(lambda word: word.startswith("-"), line[1:])
    takes_text = posixpath.basename(line[0]) in _SHELLS and any(
        map(_INLINE_SCRIPT.fullmatch, options)
    )
    if takes_text and not any("$@" in word or "$*" in word for word in line):
        raise errors.InputError(
            f"the trainer's container runs a line of {line[0]}'s, which passes no arguments on to "
            "the script: write the command as a list that begins with torchrun or python"
        )
