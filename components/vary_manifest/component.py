# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The component vary_manifest; compile it with ``python -m components.compile``."""

# No postponed annotations: kfp reads the types themselves.
from kfp import dsl

from components.task_config import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator] # kfp has no types
def vary_manifest(manifest: str, arguments: str) -> str:
    """Give a training job's script further arguments: a trial of a sweep.

    Args:
        manifest: PyTorchJob as a text of YAML or JSON, not patched yet.
        arguments: as a shell would split them, such as ``--lr 0.1``; they come last, and so win.

    Returns:
        The job with these arguments as YAML.
    """
    from rover_kf.client import manifests
    from rover_kf.injection import patch_diff
    from rover_kf.pipeline_steps.manifest_changes import add_arguments

    return patch_diff.to_yaml(add_arguments(manifests.load(manifest).job, arguments))
