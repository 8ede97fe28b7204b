# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The component training_report; compile it with ``python -m components.compile``."""

# No postponed annotations: kfp reads the types themselves.
from kfp import dsl

from components.task_config import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator] # kfp has no types
def training_report(  # noqa: PLR0917 - kfp passes by name
    job: str,
    report: dsl.Output[dsl.HTML],
    summary: dsl.Output[dsl.Markdown],
    metrics: dsl.Output[dsl.Metrics],
    namespace: str = "",
    cluster: str = "kubernetes",
    state_dir: str = "",
    history: str = "",
) -> str:
    """Tell of a job's newest run: one HTML file, a summary, numbers.

    Args:
        job: its name, as launch_training_job gives it.
        report: timeline, throughput, checkpoints, failures and decisions, one file.
        summary: verdict, figures and newest Events, shown by the pipelines UI.
        metrics: steps, restarts, seconds and goodput.
        namespace: of the job; empty takes the step's own.
        cluster: kubernetes, or embedded on this machine.
        state_dir: folder of embedded jobs; empty takes the default.
        history: SQLAlchemy URL of the history, or a controller's https one; empty takes the
            default. Without a run in it, what stands on the job itself is told.

    Returns:
        The outcome: running, succeeded, failed or deleted.
    """
    import pathlib

    from rover_kf.api.jobs import JobKey
    from rover_kf.client import RoverClient
    from rover_kf.pipeline_steps import job_status, step_context
    from rover_kf.report import page
    from rover_kf.report.page import summary as told

    with RoverClient.connect(cluster, state=state_dir, history=history) as rover:
        key = JobKey(namespace or step_context.read(rover.cluster).namespace, job)
        record = job_status.read_record(rover, key)
    pathlib.Path(report.path).write_text(page.render(record), encoding="utf-8")
    pathlib.Path(summary.path).write_text(told(record), encoding="utf-8")
    metrics.log_metric("steps", record.steps)
    metrics.log_metric("restarts", record.restarts)
    if record.goodput.total:
        metrics.log_metric("seconds", record.goodput.total)
        metrics.log_metric("goodput", record.goodput.fraction)
    return record.outcome
