# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pipeline: recommend sizes, patch the manifest, train, report; clean up whatever happens.

Compile it with ``python -m components.compile``, or run it here and now::

    from kfp import local
    local.init(local.SubprocessRunner(use_venv=False))
    train(manifest=open("job.yaml").read(), cluster="embedded")
"""

# No postponed annotations: kfp reads the types themselves.
from kfp import dsl

from components.cleanup_job.component import cleanup_job
from components.patch_manifest.component import patch_manifest
from components.pipelines.launching import launch_and_report
from components.recommend_resources.component import recommend_resources


@dsl.pipeline(name="rover-kf-train")  # type: ignore[untyped-decorator] # kfp has no types
def train(  # noqa: PLR0917 - kfp passes by name
    manifest: str,
    timeout_seconds: float = 86400.0,
    lease_seconds: float = 600.0,
    cluster: str = "kubernetes",
    state_dir: str = "",
    history: str = "",
) -> None:
    """Recommend, patch, train, report; when a step fails, the job that it left is deleted.

    Args:
        manifest: PyTorchJob as a text of YAML or JSON.
        timeout_seconds: how long training is waited for.
        lease_seconds: how long the launching step may be silent before the job is suspended.
        cluster: kubernetes, or embedded on this machine.
        state_dir: folder of embedded jobs; empty takes the default.
        history: SQLAlchemy URL of the history, or a controller's https one; empty takes the
            default.
    """
    run = dsl.PIPELINE_JOB_ID_PLACEHOLDER
    clean = cleanup_job(run=run, cluster=cluster, state_dir=state_dir)
    clean.set_caching_options(False)
    with dsl.ExitHandler(clean):
        sizes = recommend_resources(
            manifest=manifest, cluster=cluster, state_dir=state_dir, history=history
        )
        # What is recommended changes with each run that is recorded: an old answer is no answer.
        sizes.set_caching_options(False)
        learned = sizes.outputs["Output"]
        patched = patch_manifest(manifest=manifest, recommendation=learned, cluster=cluster)
        launch_and_report(
            patched.output,
            run=run,
            timeout_seconds=timeout_seconds,
            lease_seconds=lease_seconds,
            cluster=cluster,
            state_dir=state_dir,
            history=history,
        )
