# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The component profile_training; compile it with ``python -m components.compile``."""

# No postponed annotations: kfp reads the types themselves.
from kfp import dsl

from components.task_config import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator] # kfp has no types
def profile_training(  # noqa: PLR0917 - kfp passes by name
    manifest: str,
    profile: dsl.Output[dsl.Artifact],
    summary: dsl.Output[dsl.Markdown],
    metrics: dsl.Output[dsl.Metrics],
    steps: int = 6,
    seconds: float = 180.0,
    batch_option: str = "",
    fake: bool = False,  # noqa: FBT001, FBT002 - as above
    cluster: str = "kubernetes",
    state_dir: str = "",
    history: str = "",
) -> str:
    """Try a job's script here for a few steps at two batches, and size the job by what it takes.

    The script runs in this step's own container: give the step an image that has the script, torch
    and rover-kf with kfp (``task.set_container_image``).

    Args:
        manifest: PyTorchJob as a text of YAML or JSON; its trainer's command names the script.
        profile: JSON of the sizes that follow, each with its interval, basis and reason.
        summary: the same as a table, shown by the pipelines UI.
        metrics: target of each size that was measured.
        steps: timed at each batch.
        seconds: most at each batch.
        batch_option: the script's argument for its batch; empty resizes its DataLoaders.
        fake: compute shapes only, for a model that is too large for this step.
        cluster: kubernetes, or embedded on this machine; whose quotas and nodes are the bounds.
        state_dir: folder of embedded jobs; empty takes the default.
        history: SQLAlchemy URL of the history, or a controller's https one; empty takes the
            default.

    Returns:
        The sizes as JSON, for patch_manifest.
    """
    import pathlib

    from rover_kf.api import codec
    from rover_kf.client import RoverClient, views
    from rover_kf.client.script_jobs import DryRun

    tried = DryRun(steps, seconds, batch_option, fake)
    with RoverClient.connect(cluster, state=state_dir, history=history) as rover:
        found = rover.recommend(manifest, dry_run=tried)
    text = codec.dumps(found).decode()
    pathlib.Path(profile.path).write_text(text, encoding="utf-8")
    pathlib.Path(summary.path).write_text(views.format_recommendation(found), encoding="utf-8")
    for size in found.quantities:
        if size.basis == "profile":
            metrics.log_metric(size.name, size.target)
    return text
