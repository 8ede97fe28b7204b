# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Breaking things on purpose: processes on any cluster, power and network on one of our own.

This kernel may lack netem, so loss is made by the packet filter's `statistic` match; delay is not
offered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import signal
from collections.abc import Iterator, Mapping, Sequence

from testcluster import admission, cgroups, deployment, network
from testcluster.cluster import Cluster
from testcluster.commands import run
from testcluster.errors import ClusterError
from testcluster.pod_processes import PodProcess, Processes, placed

# Ahead of everything: raw sees what arrives before the services' rules do, mangle's last hook what
# leaves.
_HOOKS = (
    ("raw", "PREROUTING", "-i", "-s", "RKF-IN"),
    ("mangle", "POSTROUTING", "-o", "-d", "RKF-OUT"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessFaults:
    """Processes of pods, found and ended.

    Args:
        reach: how they are reached.
    """

    reach: Processes

    def processes(
        self, namespace: str, pod: str, *, matching: str = "", container: str = ""
    ) -> list[PodProcess]:
        """The pod's (or one container's) processes whose command line matches, oldest first.

        Raises:
            ClusterError: there is no such pod.
        """
        found = self.reach.of(namespace, pod, container)
        return [process for process in found if re.search(matching, process.command)]

    def kill(
        self,
        namespace: str,
        pod: str,
        *,
        matching: str = "",
        container: str = "",
        number: signal.Signals = signal.SIGKILL,
        count: int = 1,
    ) -> list[PodProcess]:
        """Signal the newest ``count`` processes of the pod that match; returns them.

        Raises:
            ClusterError: fewer than that match; the message lists what runs.
        """
        found = self.processes(namespace, pod, matching=matching, container=container)[-count:]
        if len(found) < count:
            running = [process.command for process in self.processes(namespace, pod)]
            raise ClusterError(
                f"{pod} has no {count} processes like {matching!r}; it runs {running}"
            )
        for process in found:
            self.reach.send(number, process)
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class NodeFaults:
    """Power and network of the nodes of a cluster of our own, broken from outside."""

    cluster: Cluster

    def stop_node(self, name: str) -> None:
        """Cut the node's power: every process ends at once, its memory is lost, its disk stays."""
        self.cluster.node(name).power_off()

    def start_node(self, name: str) -> None:
        """Boot a stopped node; its kubelet starts its pods again, unless they were deleted."""
        node = self.cluster.node(name)
        node.boot()
        node.join()

    @contextlib.contextmanager
    def node_stopped(self, name: str) -> Iterator[None]:
        """The node is without power inside the block."""
        self.stop_node(name)
        try:
            yield
        finally:
            self.start_node(name)
            self.cluster.wait_nodes()
            # What ran on it may be the Training Operator or the controller: the next test needs it.
            waiting = ("--all-namespaces", "--all", "--for=condition=Available", "--timeout=180s")
            self.cluster.kubectl("wait", "deployments", *waiting, timeout=200)
            admission.wait(self.cluster, injected=deployment.is_there(self.cluster))

    def throttle(self, namespace: str, pod: str, *, container: str, cores: float) -> None:
        """Give a container so much of a core from now on."""
        node, found = placed(self.cluster, namespace, pod, container)
        cgroups.throttle(node, found, cores)

    @contextlib.contextmanager
    def kubelet_changed(self, name: str, changes: Mapping[str, object]) -> Iterator[None]:
        """The node's kubelet has other settings inside the block; its pods run on meanwhile."""
        kubelet = self.cluster.node(name).kubelet
        kubelet.stop()
        kubelet.start(changes)
        try:
            yield
        finally:
            kubelet.stop()
            kubelet.start()
            self.cluster.wait_nodes()

    @contextlib.contextmanager
    def partitioned(self, name: str, *, peers: Sequence[str] = ()) -> Iterator[None]:
        """Nothing passes between the node and the named nodes (none named: everything outside it).

        ``control-plane`` may be named, too. Its own pods still reach each other.
        """
        with self._filtered(name, peers, ["-j", "DROP"]):
            yield

    @contextlib.contextmanager
    def lossy(self, name: str, probability: float, *, peers: Sequence[str] = ()) -> Iterator[None]:
        """Each packet between the node and its peers is lost with that probability, either way."""
        loss = [
            "-m",
            "statistic",
            "--mode",
            "random",
            "--probability",
            str(probability),
            "-j",
            "DROP",
        ]
        with self._filtered(name, peers, loss):
            yield

    @contextlib.contextmanager
    def _filtered(self, name: str, peers: Sequence[str], verdict: list[str]) -> Iterator[None]:
        index = self.cluster.node(name).index
        self._heal(index)
        try:
            for table, hook, direction, side, chain in _HOOKS:
                _filter(index, table, "-N", chain)
                for part in _addresses(self.cluster, peers):
                    _filter(index, table, "-A", chain, side, part, *verdict)
                _filter(index, table, "-I", hook, "1", direction, "eth0", "-j", chain)
            yield
        finally:
            self._heal(index)

    def _heal(self, index: int) -> None:
        for table, hook, direction, _, chain in _HOOKS:
            listing = _filter(index, table, "-S")
            if f"-A {hook} {direction} eth0 -j {chain}" in listing:
                _filter(index, table, "-D", hook, direction, "eth0", "-j", chain)
            if f"-N {chain}" in listing:
                _filter(index, table, "-F", chain)
                _filter(index, table, "-X", chain)


def _filter(index: int, table: str, *words: str) -> str:
    return run([*network.enter(index), "iptables", "-w", "-t", table, *words])


def _addresses(cluster: Cluster, peers: Sequence[str]) -> list[str]:
    if not peers:
        return ["0.0.0.0/0"]
    found = []
    for peer in peers:
        if peer == "control-plane":
            found.append(network.address(0))
        else:
            index = cluster.node(peer).index
            found += [network.address(index), network.pod_range(index)]
    return found
