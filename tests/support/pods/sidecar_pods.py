# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods whose sidecars are real processes, and whose launchers are the test."""

from __future__ import annotations

import contextlib
import http.client
import os
import pathlib
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping

from rover_kf.api import codec, error_wire, names
from rover_kf.api.membership import Member
from rover_kf.api.status import Ack, CoordinatorStatus
from rover_kf.errors import ClusterUnavailable
from rover_kf.system.unix_http import UnixConnection
from tests.support.pods.launcher_pods import network
from tests.support.pods.sidecar_variables import sidecar_variables
from tests.support.process_pool.fork_server import Forked, nursery
from tests.support.waiting import eventually

TOKEN = "a shared token"


class SidecarPod:
    """One replica.

    Args:
        folder: of the job.
        rank: of the replica.
        address: where it listens.
        coordinator: address that it asks the coordinator at.
        uid: of the pod; another one's volume is another.
        settings: variables and policy keys of its sidecar, added to the usual ones.
        tls: how the test asks over TCP; None: by plain HTTP.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        rank: int,
        address: str,
        coordinator: str,
        uid: str = "",
        *,
        settings: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.settings, self.tls = dict(settings or {}), tls
        self.rank, self.address, self.coordinator = rank, address, coordinator
        self.name, self.uid = f"train-worker-{rank}", uid or f"uid-{rank}"
        self.folder, self.home = folder, folder / self.uid
        self.log = folder / f"{self.uid}.log"
        self.member = Member(self.name, f"of {self.uid}", rank, 1)
        self.process: Forked | subprocess.Popen[bytes] | None = None

    def start(self) -> SidecarPod:
        """Start (or start again) the sidecar."""
        self.home.mkdir(exist_ok=True)
        settings = {
            names.ENV_HOME: str(self.home),
            names.ENV_JOB: "train",
            names.ENV_NAMESPACE: "test",
            names.ENV_POD_NAME: self.name,
            names.ENV_POD_UID: self.uid,
            names.ENV_POD_IP: self.address,
            names.ENV_REPLICA_TYPE: "worker",
            names.ENV_REPLICA_INDEX: str(self.rank),
            names.ENV_COORDINATOR: self.coordinator,
            names.ENV_NODES: "3",
            names.ENV_MIN_NODES: "1",
            names.ENV_MAX_NODES: "4",
            names.ENV_ARENA_BYTES: str(1 << 20),
            "failures.restarts": "3",
            names.ENV_AUTH: "shared",
            names.ENV_TOKEN_HOME: str(self.folder),
        } | self.settings
        with self.log.open("ab") as log:
            self.process = self.begin(os.environ | sidecar_variables(settings), log.fileno())
        return self

    def begin(
        self, environment: Mapping[str, str], errors: int
    ) -> Forked | subprocess.Popen[bytes]:
        """The process, with that descriptor as its standard error."""
        return nursery().start(("sidecar",), environment, errors=errors)

    def ready(self) -> SidecarPod:
        """Wait until it serves."""
        eventually(self._serves, within=60, what=f"{self.uid} serves")
        return self

    def signal(self, number: int) -> None:
        """Signal the sidecar."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def ask(self, path: str, message: object, reply: type, *, local: bool = True, timeout=20.0):
        """Ask as the pod's launcher does, or over TCP as another pod does."""
        if local:
            connection = UnixConnection(str(self.home / names.SOCKET), timeout)
        elif self.tls is not None:
            connection = http.client.HTTPSConnection(
                self.address, names.PORT, timeout=timeout, context=self.tls
            )
        else:
            connection = http.client.HTTPConnection(self.address, names.PORT, timeout=timeout)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with contextlib.closing(connection):
            body = None if message is None else codec.dumps(message)
            connection.request("GET" if body is None else "POST", path, body, headers)
            response = connection.getresponse()
            data = response.read()
            if response.status >= http.client.BAD_REQUEST:
                raise error_wire.decode_error(response.status, data, unreadable=ClusterUnavailable)
            return codec.loads(reply, data)

    def status(self) -> CoordinatorStatus:
        """Of the coordinator that it is."""
        return self.ask(names.PATH_STATUS, None, CoordinatorStatus, local=False)

    def _serves(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            self.ask(names.PATH_HEALTH, None, Ack)
        except OSError:
            return False
        return True


@contextlib.contextmanager
def job_folder() -> Iterator[tuple[pathlib.Path, str]]:
    """A folder for the job's pods, and the first three numbers of their addresses."""
    # The path of a Unix socket is bounded: pytest's folders are too long.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rv"))
    (folder / "token").write_text(TOKEN)
    try:
        yield folder, network()
    finally:
        for log in folder.glob("*.log"):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}")
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def ended(*pods: SidecarPod) -> Iterator[None]:
    """No sidecar outlives it."""
    try:
        yield
    finally:
        for pod in pods:
            pod.kill()
