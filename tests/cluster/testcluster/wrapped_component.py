# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pipeline's component as a user has it, compiled as an elastic job."""

# No postponed annotations: kfp reads the types themselves.
import pathlib
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kfp's own, on import
    from kfp import compiler, dsl

    from components.elastic_component import to_pytorchjob


@dsl.component(base_image="python", install_kfp_package=False)
def fit(times: int, more: int = 1):
    """Say what all ranks have together."""
    import torch  # noqa: PLC0415 - kfp takes the function alone
    import torch.distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo")
    total = torch.ones(1) * times * more
    dist.all_reduce(total)
    print(f"{dist.get_world_size()} ranks have {total.item():g}", flush=True)
    dist.destroy_process_group()


def compiled(folder: pathlib.Path, image: str) -> pathlib.Path:
    """The file of it, for two pods of that image."""
    path = folder / "fit.yaml"
    together = to_pytorchjob(fit, image=image, replicas=(1, 2), cpu="100m", memory="1Gi")
    compiler.Compiler().compile(together, str(path))
    return path
