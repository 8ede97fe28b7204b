# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One container as a process tree under its supervisor; used by ``pod``.

Nothing outlives the embedded cluster: the supervisor reads a pipe whose other end only this
process holds, so even SIGKILL of this process ends the tree and gives its memory back.
(PR_SET_PDEATHSIG in the child alone would not do: it fires when the *thread* that started the child
ends, and covers one level.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping

from rover_kf.cluster.local import supervisor

_CANNOT_RUN = 128
"""Exit code of a container whose command could not even be tried, as container engines give it."""


@dataclasses.dataclass(frozen=True, slots=True)
class StartupProbe:
    """A startupProbe of kind httpGet."""

    host: str
    port: int
    path: str
    seconds: float
    """How long it may fail before the container counts as not started."""

    def passes(self) -> bool:
        """Whether it answers with 2xx or 3xx now."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=1.0)
        try:
            connection.request("GET", self.path)
            return 200 <= connection.getresponse().status < 400  # noqa: PLR2004 - the kubelet's rule
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Everything needed to start a container here."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: pathlib.Path
    log: pathlib.Path
    volumes: tuple[pathlib.Path, ...] = ()
    """The pod's own folders: its supervisor removes them if this process dies."""
    native: bool = False
    """An init container with restartPolicy Always: runs beside the others."""
    probe: StartupProbe | None = None


class LocalContainer:
    """A container of one pod, through its restarts; owned by one pod's thread.

    Delays are seconds before the first restart, and the longest; each is twice the one before.
    """

    def __init__(self, spec: ContainerSpec, delays: tuple[float, float]) -> None:
        self.spec = spec
        self.restarts = 0
        self.exit_code: int | None = None
        self.finished = False
        """Ended, and nobody will start it again."""
        self._delays = delays
        self._process: subprocess.Popen[bytes] | None = None
        self._control = -1
        self._restart_at: float | None = None
        self._unstarted = False

    @property
    def running(self) -> bool:
        """Whether its command runs."""
        return self._process is not None

    @property
    def reason(self) -> str:
        """As the kubelet would say it; empty while the first command runs."""
        if self._restart_at is not None:
            return "CrashLoopBackOff"
        if self.exit_code is None:
            return ""
        return "Completed" if self.exit_code == 0 else "Error"

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes now, the command first; the supervisor is not among them."""
        process = self._process
        return tuple(supervisor.descendants(process.pid)) if process else ()

    def start(self) -> None:
        """Start the command; its output is appended to the log."""
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        orders, self._control = os.pipe()
        arguments = supervisor.arguments(self.spec.volumes, self.spec.command)
        self._restart_at = None
        with self.spec.log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", supervisor.__file__, str(orders), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.spec.folder,
                    env=dict(self.spec.environment),
                    pass_fds=(orders,),
                    start_new_session=True,
                )
            except OSError as cause:  # its folder is gone, no memory for a process
                log.write(f"cannot start {self.spec.command[0]}: {cause}\n".encode())
                self._unstarted = True
                self._close_control()
            finally:
                os.close(orders)

    def poll(self) -> int | None:
        """The exit code if the command has ended since the last call."""
        if self._unstarted:
            self._unstarted = False
            self.exit_code = _CANNOT_RUN
            return self.exit_code
        if self._process is None:
            return None
        code = self._process.poll()
        if code is None:
            return None
        self._process = None
        self._close_control()
        self.exit_code = code if code >= 0 else 128 - code
        return self.exit_code

    def schedule_restart(self, now: float) -> None:
        """Start again after the back-off that its restarts have earned."""
        first, most = self._delays
        self._restart_at = now + min(first * 2**self.restarts, most)

    def restart_if_due(self, now: float) -> bool:
        """Start again if a planned restart's time has come."""
        if self._restart_at is None or now < self._restart_at:
            return False
        self.restarts += 1
        self.start()
        return True

    def terminate(self) -> None:
        """Send the command SIGTERM; a planned restart is dropped."""
        self._restart_at = None
        self._order(b"T")

    def kill(self) -> None:
        """End the whole tree with SIGKILL."""
        self._restart_at = None
        self._order(b"K")

    def stop(self, grace: float) -> None:
        """SIGTERM, wait at most ``grace`` seconds, SIGKILL, wait for the end."""
        self.terminate()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(grace, 0.0))
            self.kill()
            self._process.wait()
            self.poll()

    def wait_started(self, seconds: float | None = None) -> bool:
        """Wait for the startup probe at most ``seconds``; True at once if there is none."""
        probe = self.spec.probe
        deadline = time.monotonic() + (seconds or (probe.seconds if probe else 0.0))
        while probe is not None and not probe.passes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _order(self, order: bytes) -> None:
        if self._control >= 0:
            with contextlib.suppress(BrokenPipeError):  # it has just ended by itself
                os.write(self._control, order)

    def _close_control(self) -> None:
        os.close(self._control)
        self._control = -1
