# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pipeline's step as a pod: made as Kubeflow Pipelines makes it, its outputs read back.

The container ``main`` runs what was compiled. Beside it ``wait`` stands, as Argo's does: it has the
volumes on which outputs are written, and keeps them until they were read.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from testcluster.commands import Kubectl
from testcluster.compiled_pipeline import ARTIFACTS, METADATA, Step
from testcluster.errors import ClusterError, CommandFailed
from testcluster.objects import Object, apply, get
from testcluster.trainer import USER
from testcluster.waiting import until

WORKFLOW = "argoproj.io/v1alpha1"
MAIN, WAIT = "main", "wait"
_READ = 'for path; do echo "= $path"; base64 "$path" 2>/dev/null || true; done'
_STAY = "trap exit TERM; while true; do sleep 3600 & wait $!; done"


@dataclasses.dataclass(frozen=True, slots=True)
class Outputs:
    """What a step has given."""

    parameters: Mapping[str, Any]
    metadata: Mapping[str, Mapping[str, Any]]
    """Of each artifact."""
    files: Mapping[str, bytes]
    """Each artifact's content."""
    log: str


@dataclasses.dataclass(frozen=True, slots=True)
class StepPod:
    """A step that was started."""

    cluster: Kubectl
    namespace: str
    name: str
    step: Step

    def read(self) -> Object:
        """The pod."""
        return get(self.cluster, self.namespace, "pod", self.name)

    def log(self) -> str:
        """What the step has printed; empty before it starts."""
        try:
            return self.cluster.kubectl("-n", self.namespace, "logs", self.name, "-c", MAIN)
        except CommandFailed:
            return ""

    def exit_code(self) -> int | None:
        """Of the step's container; None while it has not ended."""
        told = self.read().get("status", {}).get("containerStatuses") or ()
        states = {one["name"]: one["state"] for one in told}
        ended = states.get(MAIN, {}).get("terminated")
        return None if ended is None else int(ended["exitCode"])

    def wait(self, seconds: float = 180) -> Outputs:
        """What the step has given, once it has ended; its pod is deleted then.

        Raises:
            ClusterError: it has failed, or not ended in time; the message has its log.
        """
        code = until(lambda: _told(self.exit_code()), seconds=seconds, every=0.5)
        log = self.log()
        if code != (0,):
            raise ClusterError(f"{self.name} ended with {code or 'nothing yet'}:\n{log}")
        found = self._files([METADATA, *self.step.files.values()])
        told = json.loads(found[METADATA])
        self.delete()
        return Outputs(
            told.get("parameterValues", {}),
            {
                name: one["artifacts"][0].get("metadata", {})
                for name, one in told.get("artifacts", {}).items()
            },
            {name: found[path] for name, path in self.step.files.items() if path in found},
            log,
        )

    def delete(self) -> None:
        """Delete the pod, as a stopped run does."""
        self.cluster.kubectl("-n", self.namespace, "delete", "pod", self.name, "--wait=false")

    def _files(self, paths: list[str]) -> dict[str, bytes]:
        """Content by path; of an artifact that is metadata alone there is no file."""
        words = ("-n", self.namespace, "exec", self.name, "-c", WAIT, "--", "sh", "-c", _READ)
        found: dict[str, str] = {}
        for part in self.cluster.kubectl(*words, "read", *paths).split("= /")[1:]:
            path, _, content = part.partition("\n")
            found[f"/{path}"] = content
        return {path: base64.b64decode(text) for path, text in found.items() if text.strip()}


@dataclasses.dataclass(frozen=True, slots=True)
class Own:
    """What a pipeline's author gives to one step alone.

    Args:
        image: as by ``task.set_container_image``.
        claims: PersistentVolumeClaims to mount, by the path.
        config_maps: likewise.
        variables: as by ``task.set_env_variable``.
    """

    image: str = ""
    claims: Mapping[str, str] = dataclasses.field(default_factory=dict)
    config_maps: Mapping[str, str] = dataclasses.field(default_factory=dict)
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Backend:
    """Starts steps of one run in a namespace, with one service account.

    Args:
        cluster: where.
        namespace: of the run.
        account: service account of the steps.
        workflow: the Workflow that owns their pods, as the API server has it.
        image: what the steps run instead of the compiled image; empty: that one.
        waiting: image with a shell and base64.
        variables: of every step, as ``task.set_env_variable`` sets them.
    """

    cluster: Kubectl
    namespace: str
    account: str
    workflow: Object
    image: str
    waiting: str
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def start(self, step: Step, *, attempt: int = 0, own: Own | None = None) -> StepPod:
        """Start a step.

        Args:
            step: which.
            attempt: of a step that is tried again.
            own: what this step alone has.
        """
        name = f"{self.workflow['metadata']['name']}-{step.name}-{attempt}"
        apply(self.cluster, [self._pod(name, step, own or Own())])
        return StepPod(self.cluster, self.namespace, name, step)

    def _pod(self, name: str, step: Step, own: Own) -> Object:
        owner = {key: self.workflow["metadata"][key] for key in ("name", "uid")}
        places = {"tmp": "/tmp", ARTIFACTS: f"/{ARTIFACTS}"}
        mounts = [{"name": key, "mountPath": path} for key, path in places.items()]
        given = {**own.claims, **own.config_maps}
        stores = [{"name": key, "mountPath": path} for path, key in given.items()]
        main = {
            "name": MAIN,
            "image": own.image or self.image or step.container["image"],
            "command": step.container["command"],
            "args": step.words,
            "env": [*step.container.get("env", ()), *self._variables(own)],
            "volumeMounts": [*mounts, *stores],
            "securityContext": _confined(),
        }
        wait = {
            "name": WAIT,
            "image": self.waiting,
            "command": ["sh", "-c", _STAY],
            "volumeMounts": mounts,
            "securityContext": _confined(),
        }
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": {"pipeline/runid": step.run, "workflows.argoproj.io/workflow": owner["name"]},
            "ownerReferences": [{"apiVersion": WORKFLOW, "kind": "Workflow", **owner}],
        }
        spec = {
            "serviceAccountName": self.account,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [main, wait],
            "volumes": [
                *({"name": key, "emptyDir": {}} for key in places),
                *(
                    {"name": key, "persistentVolumeClaim": {"claimName": key}}
                    for key in own.claims.values()
                ),
                *({"name": key, "configMap": {"name": key}} for key in own.config_maps.values()),
            ],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _variables(self, own: Own) -> list[Object]:
        stated = {**self.variables, **own.variables}
        fields = {"KFP_POD_NAME": "metadata.name", "KFP_POD_UID": "metadata.uid"}
        return [
            *({"name": key, "value": value} for key, value in stated.items()),
            *(
                {"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for key, path in fields.items()
            ),
        ]


def _confined() -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def _told(code: int | None) -> tuple[int, ...]:
    """A code that is true, also if it is 0."""
    return () if code is None else (code,)
