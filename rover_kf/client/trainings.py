# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Training without a manifest: a script or a function, here or on a cluster."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rover_kf import errors
from rover_kf.api.jobs import ObservedJob
from rover_kf.client import function_script, training
from rover_kf.client.drafts import Drafts
from rover_kf.client.manifests import Source
from rover_kf.client.training import Resources, Training
from rover_kf.cluster.local import LocalCluster


class Trainings(Drafts):
    """What a client does with scripts and functions."""

    def train(
        self,
        what: Callable[..., object] | pathlib.Path | str,
        *,
        parameters: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = (),
        name: str = "",
        namespace: str = "default",
        num_workers: int | str = 1,
        num_procs_per_worker: int = 1,
        resources_per_worker: Mapping[str, Any] | None = None,
        base_image: str = "",
        checkpoints: str = "",
        policy: Mapping[str, str] | None = None,
    ) -> ObservedJob:
        """Run a torchrun script, or a function, as an elastic job.

        **Usage**::

            def fit(parameters):
                import torch
                ...

            job = rover.train(fit, parameters={"steps": 100}, num_workers="1:4")
            rover.wait(job.key)

        Args:
            what: a function, which imports what it needs in its body, or the path of a script.
            parameters: of a function: one dictionary of plain data.
            arguments: of a script: words of its command line.
            name: of the job; empty: made of the function's or script's.
            namespace: of the job.
            num_workers: replicas: ``4``, or fewest and most, ``"1:4"``; the job starts with
                the most, and with fewer where there is no room for them.
            num_procs_per_worker: training processes of a replica.
            resources_per_worker: such as ``{"cpu": 2, "memory": "4Gi", "gpu": 1}``.
            base_image: on a cluster: with Python and torch.
            checkpoints: a folder (embedded), ``claim:NAME`` or an object store's URL; empty: in
                memory alone.
            policy: annotations without their prefix: ``{"checkpoint.every": "50"}``.

        Raises:
            InputError: refused before anything started.
        """
        if callable(what) and parameters is None and arguments:
            raise errors.InputError("arguments are a script's; a function is given parameters")
        stem = getattr(what, "__name__", "") if callable(what) else pathlib.Path(what).stem
        called = name or training.fresh_name(stem)
        script = self._script(what, parameters, called)
        least, most = training.bounds(num_workers)
        return self.start_training(
            Training(
                script=script,
                name=called,
                least=least,
                most=most,
                arguments=tuple(arguments),
                namespace=namespace,
                processes=num_procs_per_worker,
                image=base_image,
                resources=Resources.of(resources_per_worker),
                checkpoints=checkpoints,
                policy=dict(policy or {}),
            )
        )

    def start_training(self, asked: Training) -> ObservedJob:
        """Create the job that is asked for.

        Raises:
            InputError: refused before anything started.
        """
        if isinstance(self.cluster, LocalCluster):
            job = training.embedded_job(asked)
            # Relative paths in the script mean what they mean under python SCRIPT.
            return self.submit_source(Source(job, str(asked.script), pathlib.Path.cwd()))
        return self._start_on_cluster(asked)

    def _start_on_cluster(self, asked: Training) -> ObservedJob:
        """The job first, so that its script can be its own and go with it."""
        training.script_map(asked)  # refused before the job is there
        source = Source(training.cluster_job(asked), str(asked.script), pathlib.Path.cwd())
        job = self.submit_source(source)
        path = f"/api/v1/namespaces/{asked.namespace}/configmaps"
        what = f"the script of {job.key}"
        try:
            self.api.request("POST", path, what=what, body=training.script_map(asked, job.uid))
        except errors.RoverError:
            self.cluster.delete_job(job.key)
            raise
        return job

    def _script(
        self,
        what: Callable[..., object] | pathlib.Path | str,
        parameters: Mapping[str, Any] | None,
        name: str,
    ) -> pathlib.Path:
        if not callable(what):
            if parameters is not None:
                raise errors.InputError("parameters are a function's; a script is given arguments")
            return pathlib.Path(what)
        text = function_script.script_of(what, parameters)
        path = self.settings.state / "scripts" / f"{name.replace('-', '_')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path
