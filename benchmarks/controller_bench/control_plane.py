# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""etcd, API server, scheduler and garbage collector: real; nodes and their pods: KWOK's."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from testcluster import network
from testcluster.commands import run
from testcluster.errors import CommandFailed
from testcluster.processes import Registry
from testcluster.waiting import until

from benchmarks.controller_bench import network_namespace

ACCOUNT = "system:serviceaccount:rover-kf-system:rover-kf-controller"
"""The controller's name: its requests alone are in the audit log."""
PODS_A_NODE = 250
_ETCD = "http://127.0.0.1:2379"

Object = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Plane:
    """A Kubernetes without kubelets, in the namespace of network_namespace.py."""

    root: pathlib.Path
    binaries: Mapping[str, pathlib.Path]
    registry: Registry

    @property
    def kubeconfig(self) -> pathlib.Path:
        """Of an administrator."""
        return self.root / "admin.kubeconfig"

    @property
    def audit_log(self) -> pathlib.Path:
        """One line for each request of the controller."""
        return self.root / "audit.log"

    def kubectl(self, *words: str, text: str | None = None, timeout: float = 120) -> str:
        """Run kubectl."""
        command = [self.binaries["kubectl"], "--kubeconfig", self.kubeconfig, *words]
        return run(command, text=text, timeout=timeout)

    def apply(self, documents: list[Object]) -> None:
        """Apply plain objects."""
        listing = {"apiVersion": "v1", "kind": "List", "items": documents}
        # The server checks it; kubectl would first read the schemas of all kinds.
        words = ("apply", "--server-side", "--validate=false", "-f", "-")
        self.kubectl(*words, text=json.dumps(listing))

    def start(self, *, pods: int) -> None:
        """Start it, with nodes for so many pods; returns when the API server answers."""
        self.registry.start("etcd", self._etcd())
        self._write_audit_policy()
        self.registry.start("apiserver", self._api_server())
        self.wait("the API server", self._answers, 180)
        self._refuse_events()
        for name, words in (
            ("scheduler", self._scheduler()),
            ("controller-manager", self._controllers()),
            ("kwok", self._simulator()),
        ):
            self.registry.start(name, words)
        self._make_nodes(pods // PODS_A_NODE + 2)

    def _etcd(self) -> list[str]:
        peer = "http://127.0.0.1:2380"
        return [
            "etcd",
            f"--data-dir={self.root}/etcd",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            f"--listen-peer-urls={peer}",
            f"--quota-backend-bytes={8 << 30}",
            "--unsafe-no-fsync",  # the disk is not what is measured
        ]

    def _api_server(self) -> list[str]:
        pki = self.root / "pki"
        return [
            str(self.binaries["kube-apiserver"]),
            f"--etcd-servers={_ETCD}",
            f"--bind-address={network_namespace.HOST}",
            "--secure-port=6443",
            f"--advertise-address={network_namespace.HOST}",
            f"--tls-cert-file={pki}/api.crt",
            f"--tls-private-key-file={pki}/api.key",
            f"--client-ca-file={pki}/ca.crt",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.key",
            f"--service-account-signing-key-file={pki}/sa.key",
            f"--service-cluster-ip-range={network.SERVICES}",
            "--authorization-mode=Node,RBAC",
            # Webhooks are called by their pods' addresses: no proxy serves the services' here.
            "--enable-aggregator-routing=true",
            f"--audit-policy-file={self.root}/audit.json",
            f"--audit-log-path={self.audit_log}",
        ]

    def _write_audit_policy(self) -> None:
        rules = [{"level": "Metadata", "users": [ACCOUNT]}, {"level": "None"}]
        document = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": rules,
        }
        (self.root / "audit.json").write_text(json.dumps(document))

    def _scheduler(self) -> list[str]:
        kubeconfig = f"--kubeconfig={self.root}/scheduler.kubeconfig"
        rates = ["--kube-api-qps=1000", "--kube-api-burst=1000"]
        return [str(self.binaries["kube-scheduler"]), kubeconfig, "--leader-elect=false", *rates]

    def _controllers(self) -> list[str]:
        wanted = (
            "namespace-controller",
            "serviceaccount-controller",
            "garbage-collector-controller",
            "node-lifecycle-controller",
            "clusterrole-aggregation-controller",
        )
        return [
            str(self.binaries["kube-controller-manager"]),
            f"--kubeconfig={self.root}/controller-manager.kubeconfig",
            f"--service-account-private-key-file={self.root}/pki/sa.key",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--controllers={','.join(wanted)}",
        ]

    def _simulator(self) -> list[str]:
        return [
            str(self.binaries["kwok"]),
            f"--kubeconfig={self.kubeconfig}",
            "--manage-all-nodes=true",
            f"--cidr={network_namespace.PODS}",
            "--node-lease-duration-seconds=40",
            f"--node-ip={network_namespace.HOST}",
        ]

    def _refuse_events(self) -> None:
        """Of all but the controller: nobody reads them, and half of what a job writes they are."""
        name, group = "events-of-others", "admissionregistration.k8s.io/v1"
        rule = {
            "apiGroups": ["", "events.k8s.io"],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["events"],
        }
        policy = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": f"request.userInfo.username == '{ACCOUNT}'"}],
        }
        binding = {"policyName": name, "validationActions": ["Deny"]}
        self.apply(
            [
                {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec}
                for kind, spec in (
                    ("ValidatingAdmissionPolicy", policy),
                    ("ValidatingAdmissionPolicyBinding", binding),
                )
            ]
        )

    def _make_nodes(self, count: int) -> None:
        room = {"cpu": "10k", "memory": "100Ti", "pods": str(PODS_A_NODE)}
        nodes = [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": f"simulated-{index}", "labels": {"type": "kwok"}},
                "status": {"allocatable": room, "capacity": room},
            }
            for index in range(count)
        ]
        listing = {"apiVersion": "v1", "kind": "List", "items": nodes}
        self.kubectl("create", "-f", "-", text=json.dumps(listing))

    def route(self, namespace: str, service: str, port_name: str, port: int) -> None:
        """Say where a service's pod would be."""
        where = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{service}-here",
                "namespace": namespace,
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [network_namespace.HOST], "conditions": {"ready": True}}],
            "ports": [{"name": port_name, "port": port, "protocol": "TCP"}],
        }
        self.apply([where])

    def _answers(self) -> bool:
        try:
            self.kubectl("get", "--raw", "/readyz", timeout=10)
        except CommandFailed:
            return False
        return True

    def wait(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until it holds.

        Raises:
            TimeoutError: it does not in that time.
        """
        if not until(condition, seconds=seconds, every=0.5):
            raise TimeoutError(f"{what} is not ready in {seconds:.0f} s; read {self.registry.logs}")
