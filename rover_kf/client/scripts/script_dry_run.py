# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job's own script, found in its manifest, as something that can be tried on this machine."""

from __future__ import annotations

import dataclasses
import pathlib

from rover_kf import errors
from rover_kf.client.manifests import ManifestSource
from rover_kf.cluster.local import local_admission
from rover_kf.injection import adapters, command
from rover_kf.recommender.dry_run_process import FACTORS, DryRunSpec, run_dry_run
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
    adapter = adapters.adapter_for(source.job, source=source.name)
    replicas = adapter.replicas(source.job)
    leader = next((item for item in replicas if item.kind == "worker"), replicas[0])
    trainer = adapter.trainer(leader)
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
        steps=options.steps,
        seconds=options.seconds,
        batch_option=options.batch_option,
        fake=options.fake,
        factors=FACTORS,
    )
    return run_dry_run(asked)
