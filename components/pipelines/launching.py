# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What both pipelines do with a manifest that is ready: launch it, and report."""

# No postponed annotations: kfp reads the types themselves.
from typing import Any

from components.launch_training_job.component import launch_training_job
from components.training_report.component import training_report


def launch_and_report(
    manifest: Any,
    *,
    run: str,
    timeout_seconds: float,
    lease_seconds: float,
    cluster: str,
    state_dir: str,
    history: str,
) -> None:
    """Add the two steps to the pipeline that is being made; arguments as of the pipelines."""
    launched = launch_training_job(
        manifest=manifest,
        run=run,
        timeout_seconds=timeout_seconds,
        lease_seconds=lease_seconds,
        cluster=cluster,
        state_dir=state_dir,
        history=history,
    )
    launched.set_caching_options(False)
    # A killed step finds its job again; one whose job has failed fails again at once.
    launched.set_retry(num_retries=3, backoff_duration="10s")
    told = training_report(
        job=launched.outputs["Output"], cluster=cluster, state_dir=state_dir, history=history
    )
    told.set_caching_options(False)
