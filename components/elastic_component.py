# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``to_pytorchjob``: any lightweight component as an elastic training job.

**Usage**::

    @dsl.component
    def fit(steps: int, rate: float = 0.1):
        import torch
        ...

    fit_together = to_pytorchjob(fit, image="python-torch:latest", replicas=(1, 4), memory="8Gi")

    @dsl.pipeline
    def pipeline():
        fit_together(steps=1000, run=dsl.PIPELINE_JOB_ID_PLACEHOLDER)
"""

from __future__ import annotations

import dataclasses
import inspect
import linecache
from collections.abc import Mapping
from typing import Any

from kfp import dsl

from components.task_config import IMAGE, PASSED_FIELDS
from rover_kf import errors
from rover_kf.pipeline_steps.manifest_changes import ComponentFunction

_PLAIN = (str, int, float, bool, list, dict)
_RESERVED = ("metrics", "task_config", "run", "cluster", "state_dir", "history")
_BODY = '''\
def {name}(
    {needed}metrics: dsl.Output[dsl.Metrics],
    task_config: dsl.TaskConfig,
    {optional}run: str = "",
    cluster: str = "kubernetes",
    state_dir: str = "",
    history: str = "",
) -> str:
    """{description}

    Runs in every training process of an elastic job; gives the job's name.
    """
    import dataclasses

    from rover_kf.client import RoverClient
    from rover_kf.pipeline_steps import job_status, step_context
    from rover_kf.pipeline_steps.launch import JobLauncher
    from rover_kf.pipeline_steps.launch_options import LaunchOptions
    from rover_kf.pipeline_steps.manifest_changes import ComponentFunction, apply_settings

    job = ComponentFunction(**{fields!r}).manifest({{{given}}})
    job = apply_settings(job, dataclasses.asdict(task_config))
    with RoverClient.connect(cluster, state=state_dir, history=history) as rover:
        done = JobLauncher(rover, step_context.read(rover.cluster, run), LaunchOptions()).run(job)
        for name, value in job_status.run_metrics(rover, done.key, done.last).items():
            metrics.log_metric(name, value)
    return done.key.name
'''


def to_pytorchjob(
    component: Any,
    *,
    image: str,
    replicas: tuple[int, int] = (1, 1),
    processes: int = 1,
    cpu: str = "",
    memory: str = "",
    gpus: int = 0,
    policy: Mapping[str, str] | None = None,
) -> Any:
    """A component that runs another one's function in every training process of an elastic job.

    It takes the other's parameters, and those of launch_training_job that say where and of which
    run. Under torchrun's variables (RANK, WORLD_SIZE, …) the function is called in every process;
    a ``rover_kf.Checkpointer`` in it makes it elastic.

    Args:
        component: of ``@dsl.component``; parameters in, nothing out: what it makes goes to storage.
        image: of the training pods, with torch and what the function imports.
        replicas: fewest and most pods; the job begins with the most that there is room for.
        processes: training processes of a pod.
        cpu: of a pod, such as ``2``; empty: not stated.
        memory: of a pod, such as ``8Gi``; empty: not stated.
        gpus: of a pod.
        policy: annotations without their prefix, such as ``{"checkpoint.every": "50"}``.

    Raises:
        InputError: the component has artifacts, outputs or packages to install.
    """
    function = component.python_func
    parameters = inspect.signature(function).parameters
    _check(component, function.__name__, parameters)
    fields = dataclasses.asdict(
        ComponentFunction(
            function=function.__name__,
            source=_source(component),
            image=image,
            min_replicas=replicas[0],
            max_replicas=replicas[1],
            processes=processes,
            cpu=cpu,
            memory=memory,
            gpus=gpus,
            policy=dict(policy or {}),
        )
    )
    text = _BODY.format(
        name=function.__name__,
        needed=_listed(one for one in parameters.values() if one.default is one.empty),
        optional=_listed(one for one in parameters.values() if one.default is not one.empty),
        description=(component.component_spec.description or function.__name__).splitlines()[0],
        fields=fields,
        given=", ".join(f"{name!r}: {name}" for name in parameters),
    )
    make = dsl.component(
        base_image=IMAGE, install_kfp_package=False, task_config_passthroughs=PASSED_FIELDS
    )
    return make(_defined(function.__name__, text))


def _check(component: Any, name: str, parameters: Mapping[str, inspect.Parameter]) -> None:
    spec = component.component_spec
    if spec.outputs:
        raise errors.InputError(
            f"{name} gives {', '.join(spec.outputs)}, which a job's pods cannot hand to a "
            "pipeline; write it to storage, or give a checkpoint on with export_checkpoint"
        )
    for parameter in parameters.values():
        if parameter.annotation not in _PLAIN or parameter.name in _RESERVED:
            allowed = "str, int, float, bool, list or dict, none of them named " + ", ".join(
                _RESERVED
            )
            raise errors.InputError(
                f"{name}'s {parameter.name} cannot be passed; allowed: {allowed}"
            )
    if "pip install" in str(spec.implementation.container.command):
        raise errors.InputError(
            f"{name} installs packages when it runs; put them into the image of the training pods, "
            "and set install_kfp_package=False"
        )


def _source(component: Any) -> str:
    """What kfp embeds, without kfp."""
    embedded = component.component_spec.implementation.container.command[-1]
    lines = [line for line in embedded.splitlines() if line != "import kfp"]
    kept = [line for line in lines if not line.startswith("from kfp")]
    return "from __future__ import annotations\n" + "\n".join(kept).strip("\n") + "\n"


def _listed(parameters: Any) -> str:
    """As parameters of a function, each followed by what parts it from the next."""
    return "".join(
        f"{one.name}: {one.annotation.__name__}"
        + ("" if one.default is one.empty else f" = {one.default!r}")
        + ",\n    "
        for one in parameters
    )


def _defined(name: str, text: str) -> Any:
    """The function of a text, whose source kfp can look up."""
    place = f"<to_pytorchjob {name}>"
    linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
    scope: dict[str, Any] = {"dsl": dsl, "__name__": __name__}
    # Without this module's postponed annotations: kfp reads the types themselves.
    code = compile(text, place, "exec", dont_inherit=True)
    exec(code, scope)  # noqa: S102 - made above
    return scope[name]
