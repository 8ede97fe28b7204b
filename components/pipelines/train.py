# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pipeline: recommend sizes, patch the manifest, train, report.

Compile it with ``python -m components.compile``, or run it here and now::

    from kfp import local
    local.init(local.SubprocessRunner(use_venv=False))
    train(manifest=open("job.yaml").read(), place="embedded")
"""

# No postponed annotations: kfp reads the types themselves.
from kfp import dsl

from components.launch_training_job.component import launch_training_job
from components.patch_manifest.component import patch_manifest
from components.recommend_resources.component import recommend_resources


@dsl.pipeline(name="rover-kf-train")  # type: ignore[untyped-decorator] # kfp has no types
def train(
    manifest: str,
    timeout_seconds: float = 86400.0,
    place: str = "kubernetes",
    state: str = "",
    history: str = "",
) -> str:
    """Recommend, patch, train.

    Args:
        manifest: PyTorchJob as a text of YAML or JSON.
        timeout_seconds: how long training is waited for.
        place: kubernetes, or embedded on this machine.
        state: folder of embedded jobs; empty takes the default.
        history: SQLAlchemy URL of the history; empty takes the default.

    Returns:
        The job's name.
    """
    sizes = recommend_resources(manifest=manifest, place=place, state=state, history=history)
    # What is recommended changes with each run that is recorded: an old answer is no answer.
    sizes.set_caching_options(False)
    patched = patch_manifest(manifest=manifest, recommendation=sizes.outputs["Output"], place=place)
    launched = launch_training_job(
        manifest=patched.output,
        timeout_seconds=timeout_seconds,
        place=place,
        state=state,
        history=history,
    )
    launched.set_caching_options(False)
    return launched.outputs["Output"]  # type: ignore[no-any-return] # a placeholder of kfp's
