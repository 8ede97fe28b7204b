# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The component patch_manifest; compile it with ``python -m components.compile``."""

# No postponed annotations: kfp reads the types themselves.
from kfp import dsl

from components.task_config import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator] # kfp has no types
def patch_manifest(manifest: str, recommendation: str = "", cluster: str = "kubernetes") -> str:
    """Add sidecar, arena and launcher to a training job; nothing is created.

    Args:
        manifest: PyTorchJob as a text of YAML or JSON.
        recommendation: of recommend_resources; what past runs have shown about replicas is taken.
        cluster: kubernetes, or embedded on this machine.

    Returns:
        The patched job as YAML.
    """
    from rover_kf.api import codec
    from rover_kf.api.decisions import Recommendation
    from rover_kf.client import RoverClient, manifests
    from rover_kf.injection import patch_diff

    source = manifests.load(manifest)
    if recommendation:
        source = manifests.apply_sizes(source, codec.loads(Recommendation, recommendation))
    with RoverClient.connect(cluster) as rover:
        return patch_diff.to_yaml(rover.patch(source.job).manifest)
