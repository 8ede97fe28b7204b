# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A sidecar as a pod has one: ``python -m rover_kf.sidecar``, told by its environment alone."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
import time

from benchmarks.checkpoint_systems import memory
from rover_kf.api import codec, names
from rover_kf.api.policy import CheckpointPolicy, PolicySections

ROOT = pathlib.Path(__file__).resolve().parents[2]
STARTED_WITHIN_SECONDS = 60.0
_LOOK_SECONDS = 0.01


class Sidecar:
    """Of a job's only pod.

    Args:
        home: the pod's volume in memory.
        files: where checkpoints go.
        arena_bytes: of all slots together.
        checkpoint: the policy; its path is files.
    """

    def __init__(
        self,
        home: pathlib.Path,
        files: pathlib.Path,
        arena_bytes: int,
        checkpoint: CheckpointPolicy,
    ) -> None:
        self._home, self._arena_bytes = home, arena_bytes
        self._policy = PolicySections(dataclasses.replace(checkpoint, path=str(files)))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        (self._home / "token").write_text("a token")
        number = os.getpid()
        # The port is the same in every pod; an address of this process's own is nobody else's.
        address = f"127.{64 + number % 64}.{number // 64 % 256}.{1 + number // 16384 % 254}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rover_kf.sidecar"],
            env={**os.environ, "PYTHONPATH": str(ROOT), **self._told(address)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + STARTED_WITHIN_SECONDS
        while not (self._home / names.SOCKET).exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the sidecar did not start: {self._process.poll()}")
            time.sleep(_LOOK_SECONDS)

    def trainer(self, round_: int) -> dict[str, str]:
        """Variables of the training process in its pod."""
        return {
            names.ENV_HOME: str(self._home),
            names.ENV_ROUND: str(round_),
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
        }

    def mebibytes(self) -> float:
        """Memory of its own and of what it started."""
        return memory.own(self._process.pid) if self._process is not None else 0.0

    def kill(self) -> None:
        """SIGKILL it; what it started ends with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _told(self, address: str) -> dict[str, str]:
        return {
            names.ENV_HOME: str(self._home),
            names.ENV_JOB: "demo",
            names.ENV_NAMESPACE: "default",
            names.ENV_POD_NAME: "demo-worker-0",
            names.ENV_POD_UID: "uid-0",
            names.ENV_POD_IP: address,
            names.ENV_COORDINATOR: address,
            names.ENV_REPLICA_TYPE: "worker",
            names.ENV_REPLICA_INDEX: "0",
            **dict.fromkeys((names.ENV_NODES, names.ENV_MIN_NODES, names.ENV_MAX_NODES), "1"),
            names.ENV_AUTH: "shared",
            names.ENV_TOKEN_HOME: str(self._home),
            names.ENV_ARENA_BYTES: str(self._arena_bytes),
            names.ENV_POLICY: codec.dumps(self._policy).decode(),
        }
