# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods without Kubernetes: real sidecars and launchers as processes, each on its own address."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from rover_kf.api import codec, names
from rover_kf.api.status import CoordinatorStatus
from tests.support.pods.sidecar_variables import sidecar_variables
from tests.support.process_pool import warm_zygotes
from tests.support.process_pool.fork_server import Forked, nursery
from tests.support.waiting import eventually

_networks = itertools.count()
_STEP = re.compile(r"^step \d+ rank \d+ of \d+ pid \d+ round \d+ at [\d.]+$", re.MULTILINE)

TRAINING = """
import os, sys, time
import torch, torch.distributed as dist
from rover_kf import Checkpointer
dist.init_process_group("gloo")
rank = dist.get_rank()
last, pace = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)  # as under DistributedDataParallel, all ranks begin alike
state = {"model": torch.nn.Linear(4, 4), "seen": 0}
checkpointer = Checkpointer()
step = checkpointer.restore(state)
while step < last:
    step += 1
    ones = torch.ones(1)
    dist.all_reduce(ones)
    time.sleep(pace)
    # One write: lines of several processes must not mix.
    sys.stdout.write(f"step {step} rank {rank} of {int(ones.item())} pid {os.getpid()} "
                     f"round {os.environ['ROVER_ROUND']} at {time.time()}\\n")
    checkpointer.step(step, state, samples=8, total_steps=last)
checkpointer.close()
dist.destroy_process_group()
"""


def network() -> str:
    """A loopback /24 that no other test process uses."""
    return f"127.{64 + os.getpid() % 100}.{next(_networks) * 7 % 250 + os.getpid() // 100 % 4}"


class Pod:
    """One replica: a sidecar and a launcher that share a folder."""

    def __init__(self, job: Job, index: int) -> None:
        self.job, self.index = job, index
        self.name = f"train-worker-{index}"
        self.home = job.folder / str(index)
        self.launcher: Forked | subprocess.Popen[bytes] | None = None
        self.sidecar: Forked | None = None
        self.log = job.folder / f"{index}.log"

    def start_sidecar(self) -> None:
        """Start (or start again) the sidecar."""
        self.home.mkdir(exist_ok=True)
        job = self.job
        environment = os.environ | sidecar_variables(
            {
                names.ENV_HOME: str(self.home),
                names.ENV_JOB: "train",
                names.ENV_NAMESPACE: "test",
                names.ENV_POD_NAME: self.name,
                names.ENV_POD_UID: f"uid-{self.index}",
                names.ENV_POD_IP: f"{job.network}.{self.index + 1}",
                names.ENV_REPLICA_TYPE: "worker",
                names.ENV_REPLICA_INDEX: str(self.index),
                names.ENV_COORDINATOR: f"{job.network}.1",
                names.ENV_NODES: str(job.nodes),
                names.ENV_MIN_NODES: str(job.min_nodes),
                names.ENV_MAX_NODES: str(job.max_nodes),
                "scaling.sizes": job.sizes,
                names.ENV_ARENA_BYTES: str(64 << 20),
                "scaling.window": "1",
                "failures.restarts": str(job.restarts),
                names.ENV_AUTH: "shared",
                names.ENV_TOKEN_HOME: str(job.folder),
                "checkpoint.path": str(job.folder / "storage"),
                "checkpoint.persist-seconds": "1",
                **{name: value.format(index=self.index) for name, value in job.policy.items()},
            }
        )
        with (job.folder / f"{self.index}.sidecar.log").open("ab") as log:
            self.sidecar = nursery().start(("sidecar",), environment, errors=log.fileno())

    def start_launcher(self, *command: str, first: str = "", inside: Sequence[str] = ()) -> None:
        """Start rover-run.

        Args:
            command: of the training.
            first: a folder whose modules come before all others.
            inside: the command that runs it.
        """
        ours = str(pathlib.Path(__file__).parents[3])
        environment = {**os.environ, "PYTHONPATH": f"{first}:{ours}" if first else ours}
        environment |= {names.ENV_HOME: str(self.home), names.ENV_CHECKPOINT_EVERY: "5"}
        with self.log.open("ab") as log:
            if self.job.warm and not (first or inside):
                environment[warm_zygotes.ADDRESS] = warm_zygotes.address()
                streams = {"output": log.fileno(), "errors": log.fileno()}
                self.launcher = nursery().start(
                    ("launcher", command), environment, folder=self.job.folder, **streams
                )
                return
            self.launcher = subprocess.Popen(
                [*inside, sys.executable, "-m", "rover_kf.launcher", *command],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.job.folder,
            )

    def wait(self, within: float = 240.0) -> int:
        """The launcher's exit code."""
        assert self.launcher is not None
        return self.launcher.wait(within)

    def text(self) -> str:
        """What launcher and training processes printed."""
        return self.log.read_text() if self.log.exists() else ""

    def steps(self) -> list[dict[str, float]]:
        """The step lines, parsed."""
        found = []
        for line in _STEP.findall(self.text()):
            words = line.split()
            found.append(dict(zip(words[::2], map(float, words[1::2]), strict=True)))
        return found


class Job:
    """Several pods of one job; ``warm``: see warm_zygotes."""

    def __init__(
        self,
        nodes: int,
        *,
        min_nodes: int = 1,
        max_nodes: int = 4,
        sizes: str = "",
        restarts: int = 5,
        policy: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        warm: bool = True,
    ) -> None:
        # The path of a Unix socket is bounded: pytest's folders are too long.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rv"))
        self.network = network()
        self.nodes, self.min_nodes, self.max_nodes = nodes, min_nodes, max_nodes
        self.restarts, self.sizes = restarts, sizes
        self.policy, self.tls, self.warm = policy or {}, tls, warm
        self.pods: dict[int, Pod] = {}
        (self.folder / "token").write_text("a shared token")

    def __enter__(self) -> Job:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self.pods.values():
            for process in (pod.launcher, pod.sidecar):
                if process is not None and process.poll() is None:
                    process.kill()
                    process.wait()
            print(f"--- {pod.name}\n{pod.text()[-3000:]}")
            log = self.folder / f"{pod.index}.sidecar.log"
            print(log.read_text()[-3000:] if log.exists() else "")
        shutil.rmtree(self.folder, ignore_errors=True)

    def script(self, text: str = TRAINING, name: str = "train.py") -> str:
        """Write a training script."""
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def start(self, *command: str, nodes: int | None = None) -> None:
        """Start all pods with the same command."""
        for index in range(nodes or self.nodes):
            self.add(index, *command)

    def add(self, index: int, *command: str, first: str = "", inside: Sequence[str] = ()) -> Pod:
        """Start one pod; see Pod.start_launcher."""
        pod = self.pods.setdefault(index, Pod(self, index))
        pod.start_sidecar()
        pod.start_launcher(*command, first=first, inside=inside)
        return pod

    def ask(self, path: str, message: object = None) -> bytes:
        """One request to the coordinator."""
        where: dict[str, Any] = {"host": f"{self.network}.1", "port": names.PORT, "timeout": 10}
        connection = http.client.HTTPConnection(**where)
        if self.tls is not None:
            connection = http.client.HTTPSConnection(**where, context=self.tls)
        headers = {"Authorization": "Bearer a shared token"}
        try:
            body = None if message is None else codec.dumps(message)
            connection.request("GET" if body is None else "POST", path, body, headers)
            response = connection.getresponse()
            data = response.read()
            assert response.status == 200, data
            return data
        finally:
            connection.close()

    def status(self) -> CoordinatorStatus:
        """The coordinator's status with all events."""
        return codec.loads(CoordinatorStatus, self.ask(names.PATH_STATUS))

    def events(self) -> list[str]:
        """Reasons told so far."""
        return [event.reason for event in self.status().events]

    def stepping(
        self, *indices: int, after: float = 0.0, world: int | None = None, within: float = 240.0
    ) -> float:
        """Wait until these pods step in one world after that time; returns when the last began."""
        size = len(indices) if world is None else world

        def firsts() -> list[float] | None:
            found = []
            for index in indices:
                later = [s for s in self.pods[index].steps() if s["at"] > after and s["of"] == size]
                if not later:
                    return None
                found.append(later[0]["at"])
            return found

        return max(eventually(firsts, within=within, every=0.02, what=f"{indices} of {size} step"))


def kill(pid: float, number: int = signal.SIGKILL) -> None:
    """Signal a process that a test has found."""
    os.kill(int(pid), number)


def show(name: str, value: object) -> None:
    """A figure for the log."""
    print(json.dumps({name: value}))
