# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m components.compile``: write each component.yaml, palette.yaml and pipeline anew.

A test compares the files with what compiling gives.
"""

from __future__ import annotations

import pathlib
from typing import Any

from kfp import compiler

from components.cleanup_job.component import cleanup_job
from components.export_checkpoint.component import export_checkpoint
from components.launch_training_job.component import launch_training_job
from components.legacy_component_yaml import to_legacy_yaml
from components.patch_manifest.component import patch_manifest
from components.pipelines.sweep import sweep
from components.pipelines.train import train
from components.profile_training.component import profile_training
from components.recommend_resources.component import recommend_resources
from components.training_report.component import training_report
from components.vary_manifest.component import vary_manifest
from components.watch_autoscaling.component import watch_autoscaling

HERE = pathlib.Path(__file__).parent


def components() -> dict[pathlib.Path, Any]:
    """Components by their folders."""
    found = (
        profile_training,
        recommend_resources,
        vary_manifest,
        patch_manifest,
        launch_training_job,
        watch_autoscaling,
        export_checkpoint,
        training_report,
        cleanup_job,
    )
    return {HERE / one.python_func.__name__: one for one in found}


def targets() -> dict[pathlib.Path, Any]:
    """Compiled files by what they are compiled from."""
    files = {home / "component.yaml": one for home, one in components().items()}
    folder = HERE / "pipelines"
    return {**files, folder / "train.yaml": train, folder / "sweep.yaml": sweep}


def main() -> None:
    """Write them."""
    for path, function in targets().items():
        compiler.Compiler().compile(function, str(path))
    for home, one in components().items():
        (home / "palette.yaml").write_text(to_legacy_yaml(one), encoding="utf-8")


if __name__ == "__main__":
    main()
