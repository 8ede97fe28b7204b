# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A node's kubelet: its configuration, its start, and its end while the node's pods run on."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
from collections.abc import Mapping

from testcluster import network
from testcluster.errors import ClusterError
from testcluster.processes import FIRST, Registry, children, wait_ended


@dataclasses.dataclass(frozen=True, slots=True)
class Kubelet:
    """The one of a node.

    Args:
        name: of the node.
        index: of the node, from 1.
        root: the cluster's run directory.
        binaries: programs by name.
        registry: records of processes.
    """

    name: str
    index: int
    root: pathlib.Path
    binaries: Mapping[str, pathlib.Path]
    registry: Registry

    @property
    def home(self) -> pathlib.Path:
        """What the node keeps on disk."""
        return self.root / self.name

    def start(self, changes: Mapping[str, object] | None = None) -> None:
        """Start it; the API server must be ready.

        Args:
            changes: fields of its configuration that differ from what they are else.
        """
        config = self.home / "kubelet.json"
        config.write_text(json.dumps(self._config() | dict(changes or {})))
        self.registry.start(
            f"{self.name}-kubelet",
            [
                *self.registry.inside(self.name),
                *FIRST,
                self.binaries["kubelet"],
                f"--config={config}",
                f"--kubeconfig={self.root}/{self.name}.kubeconfig",
                f"--root-dir={self.home}/kubelet",
                f"--hostname-override={self.name}",
                f"--node-ip={network.address(self.index)}",
            ],
        )

    def stop(self) -> None:
        """End it alone; the node's pods run on."""
        outer = self.registry.get(f"{self.name}-kubelet")
        if outer is None:
            raise ClusterError(f"the kubelet of {self.name} has not been started")
        for pid in children(outer.pid):  # nsenter waits for it, and hands no signal on
            os.kill(pid, signal.SIGTERM)
        if not wait_ended([outer], 15):
            raise ClusterError(f"the kubelet of {self.name} does not end")
        self.registry.stop([outer])

    def _config(self) -> dict[str, object]:
        pki = self.root / "pki"
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.name}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [network.address(0)],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "containerRuntimeEndpoint": f"unix://{self.home}/containerd.sock",
            "tlsCertFile": f"{pki}/{self.name}.crt",
            "tlsPrivateKeyFile": f"{pki}/{self.name}.key",
            "podLogsDir": f"{self.home}/logs",
            "volumePluginDir": f"{self.home}/volume-plugins",
            "healthzPort": 0,
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "nodeStatusUpdateFrequency": "4s",
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
        }
