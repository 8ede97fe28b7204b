# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A TFJob without Kubernetes: each pod of the injected manifest as processes, on its own address.

Sidecars run in the Python of the tests. Trainers run in TensorFlow's, which has neither torch nor
rover-kf: what it needs comes from the runtime that the init container would have copied.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from typing import Any

from rover_kf.api import codec, names
from rover_kf.api.policy import PolicySections
from rover_kf.injection.command import RUN_MODULE
from rover_kf.injection.inject import inject
from rover_kf.injection.settings import InjectionSettings
from rover_kf.job_kinds.job_kind import Replica
from rover_kf.job_kinds.tfjob.kind import TFJOB
from rover_kf.sidecar import runtime
from tests.support.jobs.job_manifests import environment_of
from tests.support.pods import launcher_pods


@dataclasses.dataclass(slots=True)
class TensorFlowPod:
    """One pod: what it runs, and its processes."""

    name: str
    address: str
    home: pathlib.Path
    sidecar_environment: dict[str, str]
    command: list[str]
    environment: dict[str, str]
    log: pathlib.Path
    sidecar: subprocess.Popen[bytes] | None = None
    trainer: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start sidecar and trainer."""
        self.home.mkdir(exist_ok=True)
        with self.log.with_suffix(".sidecar").open("ab") as log:
            self.sidecar = subprocess.Popen(
                [sys.executable, "-m", "rover_kf.sidecar"], env=self.sidecar_environment, stderr=log
            )
        with self.log.open("ab") as log:
            self.trainer = subprocess.Popen(
                self.command, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )

    def text(self) -> str:
        """What its trainers have printed."""
        return self.log.read_text() if self.log.exists() else ""

    def training_process(self) -> int:
        """The process of the user's script: of what the zygote has forked the one with threads."""
        assert self.trainer is not None
        (zygote,) = _children(self.trainer.pid)
        (script,) = (pid for pid in _children(zygote) if _threads(pid) > 1)
        return script

    def kill(self) -> None:
        """SIGKILL the user's script."""
        os.kill(self.training_process(), signal.SIGKILL)

    def end(self) -> None:
        """Kill what runs."""
        for process in (self.trainer, self.sidecar):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


class TensorFlowJob:
    """A TFJob's pods.

    Args:
        manifest: a TFJob as a user writes it.
        python: of TensorFlow's environment.
        scripts: folder of its scripts.
        later: pods (``worker-2``) that the test starts itself.
    """

    def __init__(
        self,
        manifest: Mapping[str, Any],
        python: pathlib.Path,
        scripts: pathlib.Path,
        later: Collection[str] = (),
    ) -> None:
        self._later = later
        # The path of a Unix socket is bounded: pytest's folders are too long.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rv"))
        self._python, self._scripts = python, scripts
        settings = InjectionSettings(sidecar_image="rover/sidecar:1", controller_account="a:b")
        self.manifest = inject(manifest, settings=settings, allow_unmounted=True).manifest
        (self.folder / "token").write_text("a shared token")
        runtime.install(self.folder / "runtime")
        network = launcher_pods.network()
        replicas = TFJOB.replicas(self.manifest)
        self._names = [(item, index) for item in replicas for index in range(item.replicas)]
        # The operator's port is 2222; TensorFlow binds it on all addresses of the machine.
        self._ports = dict(zip(map(_key, self._names), _free_ports(len(self._names)), strict=True))
        self._addresses = {
            _name(self.manifest, item, index): f"{network}.{place + 1}"
            for place, (item, index) in enumerate(self._names)
        }
        self.pods = {f"{item.kind}-{index}": self._pod(item, index) for item, index in self._names}

    def __enter__(self) -> TensorFlowJob:  # noqa: PYI034 - Self needs Python 3.11
        for name, pod in self.pods.items():
            if name not in self._later:
                pod.start()
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self.pods.values():
            pod.end()
            print(f"--- {pod.name}\n{pod.text()[-2500:]}")
            told = pod.log.with_suffix(".sidecar")
            print(told.read_text()[-1500:] if told.exists() else "not started")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _pod(self, replica: Replica, index: int) -> TensorFlowPod:
        name = _name(self.manifest, replica, index)
        pod = replica.spec["template"]["spec"]
        (sidecar,) = (i for i in pod["initContainers"] if i["name"] == names.SIDECAR_CONTAINER)
        trainer = TFJOB.trainer(replica)
        home = self.folder / f"{replica.kind[:2]}{index}"
        own = {names.ENV_HOME: str(home)}
        return TensorFlowPod(
            name=name,
            address=self._addresses[name],
            home=home,
            sidecar_environment=os.environ | self._expanded(sidecar, name, replica, index) | own,
            command=[self._word(word) for word in trainer["command"]],
            environment=self._trainers(trainer, replica, index) | own,
            log=self.folder / f"{name}.log",
        )

    def _word(self, word: str) -> str:
        if word == "python":
            return str(self._python)
        if word == RUN_MODULE:
            return str(self.folder / "runtime" / "rover_run.py")
        return str(self._scripts / word) if word.endswith(".py") else word

    def _trainers(self, trainer: Mapping[str, Any], replica: Replica, index: int) -> dict[str, str]:
        told = {key: str(value) for key, value in environment_of(dict(trainer)).items()}
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        if names.ENV_CHECKPOINT_SHARDS in told:
            told[names.ENV_CHECKPOINT_SHARDS] = str(self.folder / "shards")
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}
        alone = len(self._names) == 1  # the operator tells a single process nothing
        config = {} if alone else {"TF_CONFIG": self._tf_config(replica.kind, index)}
        if names.ENV_TF_CLUSTER in told:
            config = {
                "TF_CONFIG": self._sparse_config(replica.kind, index),
                names.ENV_TF_CLUSTER: json.dumps(self._cluster()),
            }
        return {**kept, **quiet, **told, **config}

    def _tf_config(self, kind: str, index: int) -> str:
        """As the operator writes it, with addresses for the names of pods."""
        task = {"type": kind, "index": index}
        return json.dumps({"cluster": self._cluster(), "task": task, "environment": "cloud"})

    def _sparse_config(self, kind: str, index: int) -> str:
        """The same where workers come and go."""
        whole = self._cluster()
        worker = {str(index): whole["worker"][index]} if kind == "worker" else {}
        servers = {"worker": whole["ps"], "ps": whole["ps"][index : index + 1]}.get(kind, [])
        sparse = {"worker": worker, "ps": servers}
        return json.dumps({"cluster": sparse, "task": {"type": kind, "index": index}})

    def _cluster(self) -> dict[str, list[str]]:
        cluster: dict[str, list[str]] = {}
        for item, number in self._names:
            address = self._addresses[_name(self.manifest, item, number)]
            place = f"{address}:{self._ports[item.kind, number]}"
            cluster.setdefault(item.kind, []).append(place)
        return cluster

    def _expanded(
        self, sidecar: Mapping[str, Any], name: str, replica: Replica, index: int
    ) -> dict[str, str]:
        fields = {
            "metadata.name": name,
            "metadata.namespace": "test",
            "metadata.uid": f"uid-{name}",
            "status.podIP": self._addresses[name],
            "spec.nodeName": "",
            f"metadata.labels['{names.REPLICA_TYPE_LABEL}']": replica.kind,
            f"metadata.labels['{names.REPLICA_INDEX_LABEL}']": str(index),
        }
        found: dict[str, str] = {}
        for key, value in environment_of(dict(sidecar)).items():
            text = str(fields.get(value, value))
            for known in (names.ENV_JOB, names.ENV_REPLICA_INDEX):
                text = text.replace(f"$({known})", found.get(known, ""))
            found[key] = text
        host = found[names.ENV_COORDINATOR]
        if host != name:  # pods have no names here
            found[names.ENV_COORDINATOR] = self._addresses[host]
        if names.ENV_LEDGER in found:
            found[names.ENV_LEDGER] = self._addresses[found[names.ENV_LEDGER]]
        policy = codec.loads(PolicySections, found[names.ENV_POLICY])
        if policy.checkpoint.path:
            checkpoint = dataclasses.replace(policy.checkpoint, path=str(self.folder / "storage"))
            policy = dataclasses.replace(policy, checkpoint=checkpoint)
            found[names.ENV_POLICY] = codec.dumps(policy).decode()
        shared = {names.ENV_AUTH: "shared", names.ENV_TOKEN_HOME: str(self.folder)}
        return found | shared


def _key(named: tuple[Replica, int]) -> tuple[str, int]:
    return named[0].kind, named[1]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in held]


def _name(manifest: Mapping[str, Any], replica: Replica, index: int) -> str:
    return f"{manifest['metadata']['name']}-{replica.kind}-{index}"


def _children(pid: int) -> list[int]:
    found = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in found.split()]


def _threads(pid: int) -> int:
    return len(list(pathlib.Path(f"/proc/{pid}/task").iterdir()))
