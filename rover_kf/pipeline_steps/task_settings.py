# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pipeline task's own settings, passed on to the training pods that the task launches; pure.

With them ``task.set_memory_limit("8Gi")``, ``kubernetes.mount_pvc(task, …)`` and the like speak of
the job, as they would of any other task. What the task states wins over the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rover_kf.api.jobs import Manifest
from rover_kf.injection import adapters

Settings = Mapping[str, Any]
"""Fields of kfp's ``dsl.TaskConfig``; absent or None where the task states nothing."""


def apply_settings(manifest: Manifest, settings: Settings) -> Manifest:
    """The manifest with a task's settings in every replica's pod.

    Args:
        manifest: of the job.
        settings: ``resources``, ``env`` and ``volume_mounts`` of the trainer; ``volumes``,
            ``tolerations``, ``node_selector`` and ``affinity`` of the pod.
    """
    stated = {key: _restore_integers(value) for key, value in settings.items() if value}
    if not stated:
        return manifest
    adapter = adapters.adapter_for(manifest)
    specs = dict(manifest["spec"][adapter.specs])
    for replica in adapter.replicas(manifest):
        spec = specs[replica.key]
        template = spec["template"]
        pod = _pod(template["spec"], adapter.container, stated)
        specs[replica.key] = {**spec, "template": {**template, "spec": pod}}
    return {**manifest, "spec": {**manifest["spec"], adapter.specs: specs}}


def _pod(pod: Mapping[str, Any], trainer: str, stated: Settings) -> dict[str, Any]:
    made = dict(pod)
    made["containers"] = [
        _container(one, stated) if one["name"] == trainer else one for one in pod["containers"]
    ]
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
