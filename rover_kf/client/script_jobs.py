# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs of scripts and functions: tried on this machine, or started here or on a cluster."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rover_kf import errors
from rover_kf.api.jobs import Manifest, ObservedJob
from rover_kf.client import script_files, script_manifest, submission
from rover_kf.client.connection import Connection
from rover_kf.client.manifests import ManifestSource
from rover_kf.client.script_manifest import TrainingSpec
from rover_kf.cluster.local import local_admission
from rover_kf.injection import command
from rover_kf.job_kinds import registry
from rover_kf.recommender.dry_run_process import DryRunSpec, run_dry_run
from rover_kf.recommender.profile import Profile


@dataclasses.dataclass(frozen=True, slots=True)
class DryRun:
    """How a script is tried."""

    steps: int = 6
    """Timed for each batch."""
    seconds: float = 180.0
    """Most for each batch."""
    batch_option: str = ""
    """The script's argument whose value is the batch; empty: its DataLoaders are resized."""
    fake: bool = False
    """Compute shapes only, which takes no memory to speak of."""


def dry_run_script(source: ManifestSource, options: DryRun) -> Profile:
    """Run a job's script for a few steps here.

    Raises:
        InputError: there is no script to run, or it made no step.
    """
    job_kind = registry.kind_of(source.job, source=source.name)
    replicas = job_kind.replicas(source.job)
    leader = next((item for item in replicas if item.kind == "worker"), replicas[0])
    trainer = job_kind.trainer(leader)
    line = command.original(source.job, leader.key, trainer)
    if not line:
        raise errors.InputError(
            f"{source.name}: the trainer's container states no command, so there is no script to "
            "try; write it as a list starting with python or torchrun"
        )
    stated = {
        str(one["name"]): str(one["value"]) for one in trainer.get("env") or [] if "value" in one
    }
    asked = DryRunSpec(
        command=tuple(line),
        folder=pathlib.Path(local_admission.work_folder(trainer, source.folder)),
        environment=stated,
        **dataclasses.asdict(options),
    )
    return run_dry_run(asked)


def start(connection: Connection, spec: TrainingSpec) -> ObservedJob:
    """Create the job of a script."""
    if not connection.embedded:
        return _start_on_cluster(connection, spec)
    return submission.submit(connection, _source(spec, script_manifest.make_embedded_job(spec)))


def _start_on_cluster(connection: Connection, spec: TrainingSpec) -> ObservedJob:
    """The job first, so that its script can be its own and go with it."""
    script_manifest.make_script_config_map(spec)  # refused before the job is there
    job = submission.submit(connection, _source(spec, script_manifest.make_cluster_job(spec)))
    path = f"/api/v1/namespaces/{spec.namespace}/configmaps"
    what = f"the script of {job.key}"
    try:
        connection.api.request(
            "POST", path, what=what, body=script_manifest.make_script_config_map(spec, job.uid)
        )
    except errors.RoverError:
        connection.cluster.delete_job(job.key)
        raise
    return job


def _source(spec: TrainingSpec, job: Manifest) -> ManifestSource:
    # Relative paths in the script mean what they mean under python SCRIPT.
    return ManifestSource(job, str(spec.script), pathlib.Path.cwd())


def script_of(
    connection: Connection,
    name: str,
    what: Callable[..., object] | pathlib.Path | str,
    parameters: Mapping[str, Any] | None,
    arguments: Sequence[str],
) -> pathlib.Path:
    """The script's path; a function is written into the state folder, as the job's script."""
    if not callable(what):
        if parameters is not None:
            raise errors.InputError("parameters are a function's; a script is given arguments")
        return pathlib.Path(what)
    if parameters is None and arguments:
        raise errors.InputError("arguments are a script's; a function is given parameters")
    text = script_files.render_script(what, parameters)
    path = connection.settings.state / "scripts" / f"{name.replace('-', '_')}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
