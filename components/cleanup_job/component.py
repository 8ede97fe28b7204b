# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The component cleanup_job; compile it with ``python -m components.compile``."""

# No postponed annotations: kfp reads the types themselves.
from kfp import dsl

from components.task_config import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator] # kfp has no types
def cleanup_job(
    run: str = "",
    finished: bool = False,  # noqa: FBT001, FBT002 - kfp passes by name
    cluster: str = "kubernetes",
    state_dir: str = "",
) -> str:
    """Delete the training jobs of this run that still go on; for an exit handler.

    Args:
        run: id of the pipeline's run, as dsl.PIPELINE_JOB_ID_PLACEHOLDER; empty takes what the
            step's pod says.
        finished: delete jobs that have ended, too.
        cluster: kubernetes, or embedded on this machine.
        state_dir: folder of embedded jobs; empty takes the default.

    Returns:
        Names of the deleted jobs, separated by spaces.
    """
    from rover_kf.client import RoverClient
    from rover_kf.pipeline_steps import cleanup, step_context

    with RoverClient.connect(cluster, state=state_dir) as rover:
        deleted = cleanup.delete_run_jobs(
            rover, step_context.read(rover.cluster, run), finished=finished
        )
    return " ".join(key.name for key in deleted)
