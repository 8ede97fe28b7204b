# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One node: namespaces, containerd, kubelet, kube-proxy; started, cut off and started again.

The node's first process (``pause``) holds its mount and pid namespaces. ``power_off`` kills it, and
the kernel kills all else in it at once: what was in memory is lost, what was on disk stays.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import signal
import tempfile
from collections.abc import Collection, Mapping, Sequence

from testcluster import cgroups, network
from testcluster.commands import run, succeeds
from testcluster.control_plane import start_proxy
from testcluster.errors import ClusterError, CommandFailed
from testcluster.kubelet import Kubelet
from testcluster.layout import Image
from testcluster.machine_folders import install
from testcluster.processes import Registry, children, command_line, wait_ended
from testcluster.waiting import until

PAUSE_IMAGE = "localhost/pause:1"
_CRI = 'plugins."io.containerd.grpc.v1.cri"'

# What nodes of one machine would fight over gets a private tmpfs, empty after each start as after a
# boot.
_BOOT = """
set -e
mount -t proc proc /proc
mount --make-rshared /
for place in /run /var/log /var/lib/cni /var/lib/kubelet; do
  mkdir -p "$place"
  mount -t tmpfs tmpfs "$place"
done
mkdir -p /run/netns /run/lock /var/log/containers /var/log/pods
exec "$1"
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A node by its number, from 1."""

    index: int
    root: pathlib.Path
    binaries: Mapping[str, pathlib.Path]
    registry: Registry

    @property
    def name(self) -> str:
        """Its name in the cluster and of its network namespace."""
        return network.namespace(self.index)

    @property
    def home(self) -> pathlib.Path:
        """What it keeps on disk."""
        return self.root / self.name

    @property
    def socket(self) -> pathlib.Path:
        """Where its containerd listens."""
        return self.home / "containerd.sock"

    @property
    def running(self) -> bool:
        """Whether its first process lives."""
        init = self.registry.get(f"{self.name}-init")
        return init is not None and init.alive()

    @property
    def kubelet(self) -> Kubelet:
        """Its kubelet, running or not."""
        return Kubelet(self.name, self.index, self.root, self.binaries, self.registry)

    def boot(self) -> None:
        """Start its namespaces and containerd; returns when containerd answers."""
        self.home.mkdir(parents=True, exist_ok=True)
        cgroups.create(self.name)
        network.plug(self.index)
        self._start_init()
        self._write_containerd_config()
        self.registry.start(
            f"{self.name}-containerd",
            [*self._enter(), "containerd", "-c", self.home / "containerd.toml"],
        )
        if not until(lambda: succeeds(["ctr", "-a", self.socket, "version"]), seconds=60):
            raise ClusterError(
                f"containerd of {self.name} does not answer; read {self.registry.logs}"
            )

    def join(self) -> None:
        """Start kubelet and kube-proxy; the API server must be ready."""
        self.kubelet.start()
        start_proxy(
            self.root,
            self.binaries,
            self.registry,
            index=self.index,
            hostname=self.name,
            prefix=self._enter(),
        )

    def load(self, images: Sequence[Image]) -> None:
        """Import images, sending only the layers that the node does not have."""
        for image in images:
            self._load_lacking(image)

    def _load_lacking(self, image: Image) -> None:
        try:
            self._load(image, without=self._content())
        except CommandFailed:
            # What it had was collected as garbage in between: its image was replaced.
            self._load(image, without=())

    def _load(self, image: Image, *, without: Collection[str]) -> None:
        with tempfile.NamedTemporaryFile(dir=self.home, suffix=".tar") as archive:
            image.write_archive(pathlib.Path(archive.name), without=without)
            self.load_archive(pathlib.Path(archive.name))

    def _content(self) -> set[str]:
        return set(run(["ctr", "-a", self.socket, "-n", "k8s.io", "content", "ls", "-q"]).split())

    def load_archive(self, archive: pathlib.Path) -> None:
        """Import an image archive (docker-archive or oci-archive)."""
        run(["ctr", "-a", self.socket, "-n", "k8s.io", "images", "import", archive])

    def power_off(self) -> None:
        """End every process of the node at once, as a power failure would: nobody says goodbye."""
        init = self.registry.get(f"{self.name}-init")
        if init is None or not init.alive():
            raise ClusterError(f"{self.name} does not run")
        outside = [daemon for daemon in self.registry.all() if self._is_ours(daemon.name)]
        network.unplug(self.index)
        init.signal(signal.SIGKILL)
        if not wait_ended([init, *outside], 30):
            raise ClusterError(f"processes of {self.name} survive the end of their namespace")
        self.registry.stop([init, *outside])
        network.forget_pods(self.index)

    def _is_ours(self, daemon: str) -> bool:
        return daemon.startswith(f"{self.name}-") or daemon == f"proxy{self.index}"

    def _start_init(self) -> None:
        if self.running:
            raise ClusterError(f"{self.name} runs already")
        unshare = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private"]
        shell = ["sh", "-c", _BOOT, "boot", self.binaries["pause"]]
        outer = self.registry.start(
            f"{self.name}-unshare", [*network.enter(self.index), *unshare, *shell]
        )

        def booted() -> list[int]:
            return [pid for pid in children(outer.pid) if command_line(pid).endswith("/pause")]

        ready = until(booted, seconds=30, every=0.02, hopeless=lambda: not outer.alive())
        if not ready:
            raise ClusterError(
                f"{self.name} did not boot; read {self.registry.logs}/{self.name}-unshare.log"
            )
        self.registry.adopt(f"{self.name}-init", ready[0])

    def _enter(self) -> list[str]:
        return self.registry.inside(self.name)

    def run(self, command: list[str], *, text: str | None = None) -> str:
        """Run a program inside the node's namespaces and return its output."""
        return run([*self._enter(), *command], text=text)

    def _write_containerd_config(self) -> None:
        runtime = install(self.home / "runc")
        cni = self.home / "cni"
        cni.mkdir(exist_ok=True)
        (cni / "10-rk.conflist").write_text(json.dumps(self._cni_config()))
        (self.home / "containerd.toml").write_text(
            # The state lies on the tmpfs: after a power failure containerd must not find tasks that
            # are gone.
            f'version = 2\nroot = "{self.home}/containerd"\nstate = "/run/containerd-state"\n'
            f'[grpc]\n  address = "{self.socket}"\n'
            f'[{_CRI}]\n  sandbox_image = "{PAUSE_IMAGE}"\n'
            # Without CAP_SYS_RESOURCE a negative oom_score_adj is refused and no sandbox starts
            # ("can't get final child's PID from pipe: EOF").
            "  restrict_oom_score_adj = true\n"
            f'  [{_CRI}.cni]\n    bin_dir = "/usr/lib/cni"\n    conf_dir = "{cni}"\n'
            f'  [{_CRI}.containerd.runtimes.runc]\n    runtime_type = "io.containerd.runc.v2"\n'
            f"  [{_CRI}.containerd.runtimes.runc.options]\n    SystemdCgroup = false\n"
            f'    BinaryName = "{runtime}"\n'
        )

    def _cni_config(self) -> dict[str, object]:
        addresses = {
            "type": "host-local",
            "dataDir": "/run/ipam",
            "ranges": [[{"subnet": network.pod_range(self.index)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": False,
            "hairpinMode": True,
        }
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {
            "cniVersion": "1.0.0",
            "name": "rk",
            "plugins": [{**bridge, "ipam": addresses}, ports],
        }
