# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m components.compile``: write each component.yaml and pipeline anew.

A test compares the files with what compiling gives.
"""

from __future__ import annotations

import pathlib
from typing import Any

from kfp import compiler

from components.launch_training_job.component import launch_training_job
from components.patch_manifest.component import patch_manifest
from components.pipelines.train import train
from components.recommend_resources.component import recommend_resources

HERE = pathlib.Path(__file__).parent


def targets() -> dict[pathlib.Path, Any]:
    """Compiled files by what they are compiled from."""
    return {
        HERE / "recommend_resources" / "component.yaml": recommend_resources,
        HERE / "patch_manifest" / "component.yaml": patch_manifest,
        HERE / "launch_training_job" / "component.yaml": launch_training_job,
        HERE / "pipelines" / "train.yaml": train,
    }


def main() -> None:
    """Write them."""
    for path, function in targets().items():
        compiler.Compiler().compile(function, str(path))


if __name__ == "__main__":
    main()
