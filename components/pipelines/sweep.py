# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pipeline: one manifest trained with several sets of arguments, some at a time.

Compile it with ``python -m components.compile``.
"""

# No postponed annotations: kfp reads the types themselves.
from kfp import dsl

from components.cleanup_job.component import cleanup_job
from components.pipelines.launching import launch_and_report
from components.vary_manifest.component import vary_manifest

AT_A_TIME = 4
"""Trials that train together. Each is elastic by itself: with scaling.mode auto the controller
shares what the cluster and the namespace's quotas have among them."""


@dsl.pipeline(name="rover-kf-sweep")  # type: ignore[untyped-decorator] # kfp has no types
def sweep(  # noqa: PLR0917 - kfp passes by name
    manifest: str,
    trials: list,  # type: ignore[type-arg] # kfp knows no list of texts
    timeout_seconds: float = 86400.0,
    lease_seconds: float = 600.0,
    cluster: str = "kubernetes",
    state_dir: str = "",
    history: str = "",
) -> None:
    """Train with each set of arguments; when a trial fails, the jobs that still go on are deleted.

    Args:
        manifest: PyTorchJob as a text of YAML or JSON, not patched.
        trials: arguments of each trial as a text, such as ``["--lr 0.1", "--lr 0.01"]``.
        timeout_seconds: how long each trial is waited for.
        lease_seconds: how long a launching step may be silent before its job is suspended.
        cluster: kubernetes, or embedded on this machine.
        state_dir: folder of embedded jobs; empty takes the default.
        history: SQLAlchemy URL of the history, or a controller's https one; empty takes the
            default.
    """
    run = dsl.PIPELINE_JOB_ID_PLACEHOLDER
    clean = cleanup_job(run=run, cluster=cluster, state_dir=state_dir)
    clean.set_caching_options(False)
    with dsl.ExitHandler(clean), dsl.ParallelFor(trials, parallelism=AT_A_TIME) as arguments:
        varied = vary_manifest(manifest=manifest, arguments=arguments)
        launch_and_report(
            varied.output,
            run=run,
            timeout_seconds=timeout_seconds,
            lease_seconds=lease_seconds,
            cluster=cluster,
            state_dir=state_dir,
            history=history,
        )
