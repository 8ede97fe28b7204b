# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""etcd, API server, controller manager, scheduler, DNS: in a network namespace of their own."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping

from testcluster import network
from testcluster.commands import run
from testcluster.errors import ClusterError, CommandFailed
from testcluster.processes import FIRST, Registry
from testcluster.waiting import until

GRACE_SECONDS = 16
"""A node that is silent for so long is NotReady."""


_COREFILE = """
.:53 {{
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig} rk
    ttl {seconds}
  }}
  cache {seconds}
}}
"""


@dataclasses.dataclass(frozen=True, slots=True)
class ControlPlane:
    """The processes that make a cluster of nodes."""

    root: pathlib.Path
    binaries: Mapping[str, pathlib.Path]
    registry: Registry

    @property
    def kubeconfig(self) -> pathlib.Path:
        """Of an administrator."""
        return self.root / "admin.kubeconfig"

    def start(self) -> None:
        """Start all of it; returns when the API server is ready."""
        self._daemon("etcd", "etcd", *self._etcd_options())
        self._daemon("apiserver", self.binaries["kube-apiserver"], *self._apiserver_options())
        self._wait_ready(90)
        pki = self.root / "pki"
        self._daemon(
            "controller-manager",
            self.binaries["kube-controller-manager"],
            f"--kubeconfig={self.root}/controller-manager.kubeconfig",
            f"--service-account-private-key-file={pki}/sa.key",
            f"--root-ca-file={pki}/ca.crt",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--cluster-cidr={network.PODS}",
            f"--node-monitor-grace-period={GRACE_SECONDS}s",
            "--node-monitor-period=2s",
            "--pvclaimbinder-sync-period=1s",  # claims of a test are bound at once, not within 15 s
        )
        self._daemon(
            "scheduler",
            self.binaries["kube-scheduler"],
            f"--kubeconfig={self.root}/scheduler.kubeconfig",
            "--leader-elect=false",
        )
        self.serve_names()
        # The API server calls webhooks by their service's address, so this namespace needs the
        # services' rules too. A proxy wants to be on a node that exists (it waits 30 s for one that
        # does not): it says it is on the first.
        start_proxy(
            self.root,
            self.binaries,
            self.registry,
            index=0,
            hostname=network.namespace(1),
            prefix=network.enter(0),
        )

    def serve_names(self, *, seconds: int = 1) -> None:
        """Start CoreDNS, or start it anew with other settings.

        Args:
            seconds: for which a name may be kept, by those who ask and by CoreDNS itself.
        """
        running = self.registry.get("coredns")
        if running is not None:
            self.registry.stop([running])
        corefile = self.root / "Corefile"
        corefile.write_text(_COREFILE.format(kubeconfig=self.kubeconfig, seconds=seconds))
        self._daemon("coredns", self.binaries["coredns"], "-conf", corefile)

    def _daemon(self, name: str, *command: str | pathlib.Path) -> None:
        self.registry.start(name, [*network.enter(0), *FIRST, *command])

    def _etcd_options(self) -> list[str]:
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        return [
            f"--data-dir={self.root}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
        ]

    def _apiserver_options(self) -> list[str]:
        pki = self.root / "pki"
        return [
            "--etcd-servers=http://127.0.0.1:2379",
            "--bind-address=0.0.0.0",
            "--secure-port=6443",
            f"--advertise-address={network.address(0)}",
            f"--tls-cert-file={pki}/api.crt",
            f"--tls-private-key-file={pki}/api.key",
            f"--client-ca-file={pki}/ca.crt",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.key",
            f"--service-account-signing-key-file={pki}/sa.key",
            f"--service-cluster-ip-range={network.SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-client-certificate={pki}/admin.crt",
            f"--kubelet-client-key={pki}/admin.key",
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={pki}/ca.crt",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki}/front.crt",
            f"--proxy-client-key-file={pki}/front.key",
            "--allow-privileged=true",
        ]

    def _wait_ready(self, seconds: float) -> None:
        def ended() -> bool:
            daemon = self.registry.get("apiserver")
            return daemon is None or not daemon.alive()

        if not until(lambda: self._asked() is None, seconds=seconds, hopeless=ended):
            failure = self._asked()
            log = self.registry.logs / "apiserver.log"
            told = failure.output[-500:] if failure else "it answered late"
            raise ClusterError(f"the API server is not ready; read {log}: {told}")

    def _asked(self) -> CommandFailed | None:
        """Why the API server is not ready; None if it is."""
        kubectl = [self.binaries["kubectl"], "--kubeconfig", self.kubeconfig]
        try:
            run([*kubectl, "get", "--raw", "/readyz"], timeout=10)
        except CommandFailed as failure:
            return failure
        return None


def start_proxy(
    root: pathlib.Path,
    binaries: Mapping[str, pathlib.Path],
    registry: Registry,
    *,
    index: int,
    hostname: str,
    prefix: list[str],
) -> None:
    """Start kube-proxy in a namespace: ``prefix`` enters it, ``hostname`` is the node it claims."""
    config = root / f"proxy{index}.json"
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": f"{root}/proxy.kubeconfig"},
        "clusterCIDR": network.PODS,
        "hostnameOverride": hostname,
        "iptables": {"minSyncPeriod": "200ms"},
        # The namespaces share the machine's connection table limits: leave them.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": "",
    }
    config.write_text(json.dumps(document))
    registry.start(f"proxy{index}", [*prefix, *FIRST, binaries["kube-proxy"], f"--config={config}"])
