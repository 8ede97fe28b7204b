# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The component launch_training_job; compile it with ``python -m components.compile``."""

# No postponed annotations: kfp reads the types themselves.
from kfp import dsl

from components.task_config import IMAGE, PASSED_FIELDS


@dsl.component(  # type: ignore[untyped-decorator] # kfp has no types
    base_image=IMAGE, install_kfp_package=False, task_config_passthroughs=PASSED_FIELDS
)
def launch_training_job(  # noqa: PLR0917 - kfp passes by name
    manifest: str,
    metrics: dsl.Output[dsl.Metrics],
    task_config: dsl.TaskConfig,
    run: str = "",
    timeout_seconds: float = 86400.0,
    start_seconds: float = 120.0,
    on_stop: str = "delete",
    lease_seconds: float = 600.0,
    on_lease_expired: str = "suspend",
    inject: bool = True,  # noqa: FBT001, FBT002 - as above
    cluster: str = "kubernetes",
    state_dir: str = "",
    history: str = "",
) -> str:
    """Create a training job, keep it, wait until it succeeds, and tell of it meanwhile.

    Started again, the step finds its own job: the name follows from run and manifest. The job goes
    with the run's Workflow; one whose step is not heard of for the lease is suspended or deleted by
    the controller. Switch caching off for this step, or a second run trains nothing.

    Args:
        manifest: PyTorchJob as a text of YAML or JSON, patched or not.
        metrics: steps, restarts, goodput and seconds of the run, as far as they could be seen.
        task_config: the task's own resources, volumes, variables, tolerations, node selector and
            affinity, given to the training pods; filled in by the backend.
        run: id of the pipeline's run, as dsl.PIPELINE_JOB_ID_PLACEHOLDER; empty takes what the
            step's pod says. Without one the job keeps the manifest's name, and has no lease.
        timeout_seconds: how long it is waited for; then it is stopped as on_stop says.
        start_seconds: how long no operator may act on it before the step fails.
        on_stop: what becomes of the job when the step is stopped: delete, suspend or keep.
        lease_seconds: how long the step may be silent; 0 is for ever.
        on_lease_expired: what the controller does then: suspend, delete or keep.
        inject: patch the job here; False leaves that to the controller's webhook.
        cluster: kubernetes, or embedded on this machine.
        state_dir: folder of embedded jobs; empty takes the default.
        history: SQLAlchemy URL of the history, or a controller's https one; empty takes the
            default.

    Returns:
        The job's name.
    """
    import dataclasses

    from rover_kf.client import RoverClient, manifests
    from rover_kf.pipeline_steps import job_status, manifest_changes, step_context
    from rover_kf.pipeline_steps.launch import JobLauncher
    from rover_kf.pipeline_steps.launch_options import LaunchOptions

    terms = LaunchOptions(timeout_seconds, start_seconds, on_stop, lease_seconds, on_lease_expired)
    job = manifest_changes.apply_settings(
        manifests.load(manifest).job, dataclasses.asdict(task_config)
    )
    with RoverClient.connect(cluster, state=state_dir, history=history) as rover:
        launch = JobLauncher(rover, step_context.read(rover.cluster, run), terms)
        done = launch.run(job, inject=inject)
        for name, value in job_status.run_metrics(rover, done.key, done.last).items():
            metrics.log_metric(name, value)
    return done.key.name
