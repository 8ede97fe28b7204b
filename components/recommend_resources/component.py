# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The component recommend_resources; compile it with ``python -m components.compile``."""

# No postponed annotations: kfp reads the types themselves.
from kfp import dsl

from components.task_config import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator] # kfp has no types
def recommend_resources(  # noqa: PLR0917 - kfp passes by name
    manifest: str,
    sizes: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
    cluster: str = "kubernetes",
    state_dir: str = "",
    history: str = "",
) -> str:
    """Say which sizes to ask for before a training job starts, from the runs of its like.

    Args:
        manifest: PyTorchJob as a text of YAML or JSON (a dict would turn replicas into 2.0).
        sizes: JSON of the recommendation: target, interval, basis and reason of each size.
        summary: the same as a table, shown by the pipelines UI.
        cluster: kubernetes, or embedded on this machine.
        state_dir: folder of embedded jobs; empty takes the default.
        history: its SQLAlchemy URL or a controller's https one; empty takes the default.

    Returns:
        The recommendation as JSON.
    """
    import pathlib

    from rover_kf.api import codec
    from rover_kf.client import RoverClient, views

    with RoverClient.connect(cluster, state=state_dir, history=history) as rover:
        found = rover.recommend(manifest)
    text = codec.dumps(found).decode()
    pathlib.Path(sizes.path).write_text(text, encoding="utf-8")
    pathlib.Path(summary.path).write_text(views.format_recommendation(found), encoding="utf-8")
    return text
