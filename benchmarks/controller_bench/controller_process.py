# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The controller as it runs in its pod: its account's token, its webhook, its own history."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import pathlib
import signal
import sys

import urllib3
import yaml
from testcluster import settings
from testcluster.processes import Daemon

from benchmarks.controller_bench import network_namespace
from benchmarks.controller_bench.control_plane import Plane
from benchmarks.controller_bench.histogram import Histogram

NAMESPACE, ACCOUNT = "rover-kf-system", "rover-kf-controller"
_WEBHOOK_PORT, _HEALTH_PORT = 9444, 8082
# What a kubelet mounts, in a /run of the process' own.
_IN_OWN_RUN = (
    "mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io && "
    'cp -r "$MOUNTED" /run/secrets/kubernetes.io/serviceaccount && exec "$@"'
)
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What a process has taken so far."""

    cpu_seconds: float
    rss: int
    """Bytes, now."""
    peak: int
    """Bytes, at its worst."""


class Subject:
    """The controller's process.

    Args:
        plane: that it works on.
    """

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._daemon: Daemon | None = None

    def install(self) -> None:
        """Apply its manifests, all but the Deployment."""
        overlay = settings.REPOSITORY / "manifests/overlays/standalone"
        text = self._plane.kubectl("kustomize", str(overlay))
        documents = [item for item in yaml.safe_load_all(text) if item]
        self._plane.apply([item for item in documents if item["kind"] == "Namespace"])
        kept = ("Namespace", "Deployment")
        self._plane.apply([item for item in documents if item["kind"] not in kept])
        self._plane.route(NAMESPACE, "rover-kf-webhook", "webhook", _WEBHOOK_PORT)
        mounted = self._plane.root / "mounted"
        mounted.mkdir(exist_ok=True)
        words = ("create", "token", ACCOUNT, "-n", NAMESPACE, "--duration=12h")
        token = self._plane.kubectl(*words).strip()
        (mounted / "token").write_text(token)
        (mounted / "namespace").write_text(NAMESPACE)
        (mounted / "ca.crt").write_bytes((self._plane.root / "pki/ca.crt").read_bytes())

    def start(self) -> None:
        """Start it; returns when its webhook is trusted."""
        root = self._plane.root
        environment = {
            "MALLOC_ARENA_MAX": "2",  # as in its pod
            "MOUNTED": str(root / "mounted"),
            "KUBERNETES_SERVICE_HOST": network_namespace.HOST,
            "KUBERNETES_SERVICE_PORT": "6443",
            "PYTHONPATH": str(settings.REPOSITORY),
            "ROVER_NAMESPACE": NAMESPACE,
            "ROVER_SIDECAR_IMAGE": "rover-kf-sidecar:0.1.0",
            "ROVER_HISTORY": f"sqlite:///{root}/history.db",
            "ROVER_WEBHOOK_PORT": str(_WEBHOOK_PORT),
            "ROVER_HEALTH_PORT": str(_HEALTH_PORT),
            "ROVER_LOG_LEVEL": os.environ.get("ROVER_LOG_LEVEL", "WARNING"),
        }
        words = ["unshare", "--mount", "sh", "-c", _IN_OWN_RUN, "sh"]
        self._daemon = self._plane.registry.start(
            "controller",
            [
                "env",
                *(f"{key}={value}" for key, value in environment.items()),
                *words,
                sys.executable,
                "-m",
                "controller",
            ],
        )
        self._plane.wait("the controller", self._ready, 180)

    def _ready(self) -> bool:
        if self._daemon is None or not self._daemon.alive():
            raise RuntimeError(f"the controller has ended; read {self._plane.registry.logs}")
        return self._asked("/readyz") == "ok"

    def kill(self) -> None:
        """End it at once."""
        if self._daemon is not None:
            self._daemon.signal(signal.SIGKILL)
            self._plane.registry.stop([self._daemon])

    def usage(self) -> Usage:
        """CPU time and memory."""
        if self._daemon is None:
            raise RuntimeError("the controller has not been started")
        home = pathlib.Path(f"/proc/{self._daemon.pid}")
        fields = (home / "stat").read_text().rpartition(")")[2].split()
        status = (home / "status").read_text()
        return Usage(
            cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
            rss=_kilobytes(status, "VmRSS") * 1024,
            peak=_kilobytes(status, "VmHWM") * 1024,
        )

    def complaints(self) -> list[str]:
        """What it has logged so far: warnings and errors, but for what their tracebacks say."""
        log = self._plane.registry.logs / "controller.log"
        lines = log.read_text(errors="replace").splitlines()
        return [line for line in lines if line.startswith("{")]

    def decisions(self) -> Histogram:
        """From the close of a window to the decision made of it, as the controller says."""
        return Histogram.read(self._asked("/metrics"), "rover_kf_decision_seconds")

    def _asked(self, path: str) -> str:
        try:
            url = f"http://127.0.0.1:{_HEALTH_PORT}{path}"
            return urllib3.request("GET", url, timeout=20, retries=False).data.decode()
        except urllib3.exceptions.HTTPError:
            return ""


def requests_in(audit_log: pathlib.Path, since: float, until: float) -> dict[str, int]:
    """The controller's requests to the API server in that time, by verb and resource.

    Args:
        audit_log: of the API server, which holds nobody else's.
        since: Unix seconds.
        until: Unix seconds.
    """
    found: dict[str, int] = {}
    with audit_log.open(encoding="utf-8") as lines:
        for line in lines:
            item = json.loads(line)
            if not since <= _seconds(item["requestReceivedTimestamp"]) < until:
                continue
            about = item.get("objectRef") or {}
            parts = (item["verb"], about.get("resource", item["requestURI"]))
            name = " ".join(parts)
            found[name] = found.get(name, 0) + 1
    return found


def _seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _kilobytes(status: str, name: str) -> int:
    line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])
