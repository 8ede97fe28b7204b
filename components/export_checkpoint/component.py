# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The component export_checkpoint; compile it with ``python -m components.compile``."""

# No postponed annotations: kfp reads the types themselves.
from kfp import dsl

from components.task_config import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)  # type: ignore[untyped-decorator] # kfp has no types
def export_checkpoint(  # noqa: PLR0917 - kfp passes by name
    path: str,
    model: dsl.Output[dsl.Model],
    job: str = "",
    step: int = -1,
    rank: int = 0,
    form: str = "safetensors",
) -> int:
    """Write a job's newest whole checkpoint, or that of a step, as a Model artifact.

    Args:
        path: what checkpoint.path says: a folder on a volume that this step mounts, too, or a URL
            (s3://…) with the store's credentials in this step's variables.
        model: the whole state: one file (safetensors, torch) or a folder (dcp, folder).
        job: its name, the folder below path; empty: path names it, or one checkpoint of it.
        step: of which; -1: the newest that is whole.
        rank: whose own tensors and plain values are taken.
        form: safetensors, torch, dcp or folder; torch and dcp need an image with torch.

    Returns:
        The step.
    """
    import pathlib

    from rover_kf.checkpoint_tools.export import export_model

    out = pathlib.Path(model.path)
    made = export_model(path, out, job=job, step=step, rank=rank, form=form)
    model.framework = "pytorch"
    saved = int(made.state.step)
    model.metadata.update(step=saved, format=form, world_size=made.world_size, source=path)
    return saved
