# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The component watch_autoscaling; compile it with ``python -m components.compile``."""

# No postponed annotations: kfp reads the types themselves.
from kfp import dsl

from components.task_config import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator] # kfp has no types
def watch_autoscaling(  # noqa: PLR0917 - kfp passes by name
    manifest: str,
    summary: dsl.Output[dsl.Markdown],
    metrics: dsl.Output[dsl.Metrics],
    run: str = "",
    timeout_seconds: float = 86400.0,
    start_seconds: float = 600.0,
    cluster: str = "kubernetes",
    state_dir: str = "",
) -> str:
    """Follow what becomes of a job's size, beside the step that has launched it.

    Args:
        manifest: the text that launch_training_job is given: it names the job.
        summary: what was decided, verified and rolled back, and why, as a table.
        metrics: replicas at least, at most and at the end; changes, verified, rolled back.
        run: id of the pipeline's run, as launch_training_job is given it.
        timeout_seconds: how long it is watched.
        start_seconds: how long the job may take to be created.
        cluster: kubernetes, or embedded on this machine.
        state_dir: folder of embedded jobs; empty takes the default.

    Returns:
        The job's name.
    """
    import pathlib

    from rover_kf.client import RoverClient, manifests
    from rover_kf.pipeline_steps import launch_options, scaling_watch, step_context
    from rover_kf.pipeline_steps.launch_options import LaunchOptions

    with RoverClient.connect(cluster, state=state_dir) as rover:
        job = manifests.load(manifest).job
        launched = launch_options.with_launch_metadata(
            job, step_context.read(rover.cluster, run), LaunchOptions()
        )
        story = scaling_watch.watch_scaling(
            rover,
            manifests.load(launched).key,
            timeout_seconds=timeout_seconds,
            start_seconds=start_seconds,
        )
    pathlib.Path(summary.path).write_text(story.markdown, encoding="utf-8")
    for name, value in story.metrics.items():
        metrics.log_metric(name, value)
    return story.job
