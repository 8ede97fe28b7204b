# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's container: rover-run in torchrun's place, and the variables that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.injection import command, keyed_lists, lifecycle, sidecar_container
from rover_kf.injection.injection_plan import ReplicaPlan

PYTHONPATH = "PYTHONPATH"
_MANAGED = (
    names.ENV_HOME,
    names.ENV_CHECKPOINT_EVERY,
    names.ENV_GRACE,
    names.ENV_SERVES,
    names.ENV_MEMORY_MAX,
    names.ENV_JOB,
    names.ENV_NAMESPACE,
    names.ENV_TF_CLUSTER,
    names.ENV_CHECKPOINT_SHARDS,
)


def apply(pod: keyed_lists.Tree, plan: ReplicaPlan) -> dict[str, Any]:
    """Rewrite the command if it can be, and set the environment."""

    def change(trainer: keyed_lists.Item) -> keyed_lists.Item:
        grace = lifecycle.termination_grace(pod, plan)
        variables: list[dict[str, Any]] = [
            {"name": names.ENV_HOME, "value": names.HOME},
            {"name": names.ENV_CHECKPOINT_EVERY, "value": str(plan.policy.checkpoint.every)},
        ]
        if grace != lifecycle.GRACE_SECONDS:
            variables.append({"name": names.ENV_GRACE, "value": str(grace)})
        if plan.is_server:
            variables.append({"name": names.ENV_SERVES, "value": "1"})
        if plan.policy.memory.max is not None:
            most = str(plan.policy.memory.max)
            variables.append({"name": names.ENV_MEMORY_MAX, "value": most})
        if plan.cluster:
            variables += sidecar_container.job_variables(plan)
            variables.append({"name": names.ENV_TF_CLUSTER, "value": plan.cluster})
        variables += _shards(plan)
        ours = keyed_lists.extend_items(trainer, "env", last=variables)
        if plan.rewritten is not None:
            return command.write(ours, plan.rewritten)
        # Without our launcher nothing else makes ``import rover_kf`` find the runtime.
        return _with_python_path(ours)

    return keyed_lists.replace_item(pod, "containers", plan.container, change)


def remove(
    pod: keyed_lists.Tree, container: str, recorded: command.ParsedCommand | None
) -> dict[str, Any]:
    """The trainer as its user wrote it."""

    def change(trainer: keyed_lists.Item) -> keyed_lists.Item:
        bare = keyed_lists.filter_items(
            _without_python_path(trainer), "env", lambda item: item.get("name") not in _MANAGED
        )
        line = command.read(bare)
        if not command.is_rewritten(line):
            return bare
        return command.write(bare, command.restore(line, recorded))

    return keyed_lists.replace_item(pod, "containers", container, change)


def _shards(plan: ReplicaPlan) -> list[dict[str, Any]]:
    """The job's folder for what its servers write, for whoever tells them to."""
    stated = plan.policy.checkpoint.shards
    if stated is None or plan.world.standalone:
        return []
    known = [] if plan.job else sidecar_container.job_variables(plan)
    value = f"{stated.rstrip('/')}/{plan.job or f'$({names.ENV_JOB})'}"
    return [*known, {"name": names.ENV_CHECKPOINT_SHARDS, "value": value}]


def _with_python_path(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """Our folder before the user's own; a value that comes from elsewhere is left alone."""
    variables = trainer.get("env") or ()
    if not any(item.get("name") == PYTHONPATH for item in variables):
        return keyed_lists.extend_items(
            trainer, "env", last=({"name": PYTHONPATH, "value": command.RUNTIME},)
        )

    def prefix(item: keyed_lists.Item) -> keyed_lists.Item:
        if "valueFrom" in item:
            return item
        own = item.get("value") or ""
        return {**item, "value": f"{command.RUNTIME}:{own}"}

    return keyed_lists.replace_item(trainer, "env", PYTHONPATH, prefix)


def _without_python_path(trainer: Mapping[str, Any]) -> dict[str, Any]:
    mine = {"name": PYTHONPATH, "value": command.RUNTIME}
    if not trainer.get("env"):
        return dict(trainer)
    bare = keyed_lists.filter_items(trainer, "env", lambda item: dict(item) != mine)
    if not bare.get("env"):
        return bare

    def shorten(item: keyed_lists.Item) -> keyed_lists.Item:
        own = str(item.get("value") or "")
        if not own.startswith(command.RUNTIME + ":"):
            return item
        return {**item, "value": own[len(command.RUNTIME) + 1 :]}

    return keyed_lists.replace_item(bare, "env", PYTHONPATH, shorten)
