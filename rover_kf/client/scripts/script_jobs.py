# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs without a manifest: a script or a function, on this machine or on a cluster."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rover_kf import errors
from rover_kf.api.jobs import Manifest, ObservedJob
from rover_kf.client import submission
from rover_kf.client.connection import Connection
from rover_kf.client.manifests import ManifestSource
from rover_kf.client.scripts import script_files, script_manifest
from rover_kf.client.scripts.script_manifest import TrainingSpec


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
