# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A compiled pipeline as the driver of Kubeflow Pipelines reads it: which container, which input.

No backend runs on the test cluster. What its driver does before a step's pod starts is done here:
parameters are resolved through the nested DAGs, defaults are filled in, outputs get their places.
Conditions, loops and artifacts as inputs are left out: the pipelines under test have none.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import yaml

Object = dict[str, Any]

PARAMETERS = "/tmp/kfp/outputs"
"""Folder of output parameters; this and the next two are where the driver puts them."""
METADATA = "/tmp/kfp_outputs/output_metadata.json"
"""What the component's executor writes at its end."""
ARTIFACTS = "minio"
"""Scheme of artifacts' addresses, and the folder at the root that stands for it in the pod."""
_RUN = "{{$.pipeline_job_uuid}}"


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One task, ready to become a pod."""

    name: str
    run: str
    container: Object
    """Image, command, arguments and variables of the executor, as compiled."""
    values: Object
    parameters: tuple[str, ...]
    """Outputs that are values."""
    artifacts: Mapping[str, Object]
    """Outputs that are files, and their types."""

    @property
    def executor_input(self) -> Object:
        """What the container is told."""
        place = f"{ARTIFACTS}://mlpipeline/v2/artifacts/{self.run}/{self.name}"
        made = {
            name: {"artifacts": [{"name": name, "type": kind, "uri": f"{place}/{name}"}]}
            for name, kind in self.artifacts.items()
        }
        told = {name: {"outputFile": f"{PARAMETERS}/{name}"} for name in self.parameters}
        return {
            "inputs": {"parameterValues": self.values},
            "outputs": {"parameters": told, "artifacts": made, "outputFile": METADATA},
        }

    @property
    def files(self) -> dict[str, str]:
        """Where in the pod each artifact is written."""
        places = self.executor_input["outputs"]["artifacts"]
        return {
            name: f"/{place['artifacts'][0]['uri'].replace('://', '/')}"
            for name, place in places.items()
        }

    @property
    def words(self) -> list[str]:
        """Arguments of the command."""
        told = json.dumps(self.executor_input)
        return [told if word == "{{$}}" else word for word in self.container.get("args", ())]


class Run:
    """One run of a compiled file; a component's file is a pipeline of one task.

    Args:
        path: the file.
        run: the run's id.
        arguments: of the pipeline.
    """

    def __init__(self, path: pathlib.Path, run: str, arguments: Mapping[str, Any]) -> None:
        self._document: Object = next(iter(yaml.safe_load_all(path.read_text(encoding="utf-8"))))
        self.run = run
        self._outputs: dict[str, Mapping[str, Any]] = {}
        self._tasks: dict[str, tuple[Object, Object]] = {}
        root = self._document["root"]
        self._enter(root, _with_defaults(root, arguments))

    @property
    def tasks(self) -> list[str]:
        """Names of all tasks that have a container."""
        return list(self._tasks)

    def step(self, name: str, **more: object) -> Step:
        """A task whose upstream tasks have given what they give.

        Args:
            name: of the task.
            more: values that the backend, or another pipeline, would fill in.
        """
        task, scope = self._tasks[name]
        component = self._component(task)
        values = _with_defaults(component, {**self._resolved(task, scope), **more})
        outputs = component.get("outputDefinitions", {})
        artifacts = outputs.get("artifacts", {})
        executors = self._document["deploymentSpec"]["executors"]
        return Step(
            name,
            self.run,
            executors[component["executorLabel"]]["container"],
            values,
            tuple(outputs.get("parameters", ())),
            {name: one["artifactType"] for name, one in artifacts.items()},
        )

    def gave(self, name: str, outputs: Mapping[str, Any]) -> None:
        """Note a task's output parameters."""
        self._outputs[name] = outputs

    def _enter(self, component: Object, scope: Object) -> None:
        for name, task in component["dag"]["tasks"].items():
            inner = self._component(task)
            if "dag" in inner:
                self._enter(inner, _with_defaults(inner, self._resolved(task, scope)))
            else:
                self._tasks[name] = (task, scope)

    def _component(self, task: Object) -> Object:
        found: Object = self._document["components"][task["componentRef"]["name"]]
        return found

    def _resolved(self, task: Object, scope: Object) -> Object:
        sources = task.get("inputs", {}).get("parameters", {})
        return {
            name: self._value(source, scope)
            for name, source in sources.items()
            # What is optional and has no default may be given by nobody.
            if source.get("componentInputParameter", "") in ("", *scope)
        }

    def _value(self, source: Object, scope: Object) -> Any:
        if "componentInputParameter" in source:
            return scope[source["componentInputParameter"]]
        if "taskOutputParameter" in source:
            told = source["taskOutputParameter"]
            return self._outputs[told["producerTask"]][told["outputParameterKey"]]
        constant = source["runtimeValue"]["constant"]
        return constant.replace(_RUN, self.run) if isinstance(constant, str) else constant


def _with_defaults(component: Object, given: Mapping[str, Any]) -> Object:
    declared = component.get("inputDefinitions", {}).get("parameters", {})
    defaults = {
        name: one["defaultValue"] for name, one in declared.items() if "defaultValue" in one
    }
    return {**defaults, **given}
