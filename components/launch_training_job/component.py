# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The component launch_training_job; compile it with ``python -m components.compile``."""

# No postponed annotations: kfp reads the types themselves.
from kfp import dsl

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator] # kfp has no types
def launch_training_job(  # noqa: PLR0917 - kfp passes by name
    manifest: str,
    metrics: dsl.Output[dsl.Metrics],
    report: dsl.Output[dsl.HTML],
    timeout_seconds: float = 86400.0,
    place: str = "kubernetes",
    state: str = "",
    history: str = "",
) -> str:
    """Create a training job, wait until it succeeds, and say how it went.

    A job of that name that is there already is waited for, never overwritten: a step that is
    started again finds its own. Switch caching off for this step, or a second run trains nothing.

    Args:
        manifest: PyTorchJob as a text of YAML or JSON, patched or not.
        metrics: steps, restarts and goodput of the run, where its history can be read.
        report: the run's report, one HTML file, where its history can be read.
        timeout_seconds: how long it is waited for; the job goes on after that.
        place: kubernetes, or embedded on this machine.
        state: folder of embedded jobs; empty takes the default.
        history: SQLAlchemy URL of the history; empty takes the default.

    Returns:
        The job's name.
    """
    from rover_kf import errors
    from rover_kf.client import RoverClient, manifests

    with RoverClient.at(place, state=state, history=history) as rover:
        key = manifests.load(manifest).key
        try:
            rover.submit(manifest)
        except errors.JobExists:
            print(f"{key} is there already: waiting for it")  # noqa: T201 - the step's log
        rover.wait(key, timeout=timeout_seconds)
        record = rover.record(key)
        if record is not None:
            metrics.log_metric("steps", record.steps)
            metrics.log_metric("restarts", record.restarts)
            metrics.log_metric("goodput", record.goodput.fraction)
            rover.report(key, report.path)
        return key.name
