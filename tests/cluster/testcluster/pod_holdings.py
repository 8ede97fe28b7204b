# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a pod holds of its node, read from the machine's kernel and not from Kubernetes."""

from __future__ import annotations

import dataclasses
import pathlib
import re

from testcluster import cgroups
from testcluster.cluster import Cluster
from testcluster.objects import Object

_PROC = pathlib.Path("/proc")


@dataclasses.dataclass(frozen=True, slots=True)
class PodHoldings:
    """Of one pod at one moment."""

    uid: str
    node: str
    init: int
    """The node's first process, whose mounts are the node's."""
    processes: frozenset[int]
    network: str
    """Its network namespace, which all of its sockets are in, as the kernel names it."""
    volumes: frozenset[str]
    """Mount points of its volumes on the node."""
    groups: frozenset[pathlib.Path]
    """Its control groups, which all that is charged to it is charged to."""

    def left(self) -> dict[str, object]:
        """What of it is there still."""
        found = {
            "processes": _processes(self.node, self.uid),
            "network": _holders(self.init, self.network),
            "volumes": _volumes(self.init, self.uid),
            "groups": {group for group in self.groups if group.exists()},
        }
        return {what: value for what, value in found.items() if value}


def held_by_pod(cluster: Cluster, pod: Object) -> PodHoldings:
    """What a pod that runs holds now."""
    uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
    daemon = cluster.registry.get(f"{node}-init")
    assert daemon is not None, f"{node} does not run"
    processes = _processes(node, uid)
    (network,) = {_network(pid) for pid in processes} - {""}
    return PodHoldings(
        uid=uid,
        node=node,
        init=daemon.pid,
        processes=processes,
        network=network,
        volumes=_volumes(daemon.pid, uid),
        groups=frozenset(cgroups.below(node, f"pod{uid}")),
    )


def _processes(node: str, uid: str) -> frozenset[int]:
    """Processes in the pod's control groups."""
    return frozenset(pid for pid in cgroups.processes(node) if f"/pod{uid}" in _read(pid, "cgroup"))


def _volumes(init: int, uid: str) -> frozenset[str]:
    lines = _read(init, "mounts").splitlines()
    return frozenset(line.split()[1] for line in lines if f"/pods/{uid}/volumes/" in line)


def _holders(init: int, network: str) -> set[str]:
    """What keeps a network namespace: a process in it, or a file of the node that is mounted."""
    inside = {
        f"process {path.name}"
        for path in _PROC.iterdir()
        if path.name.isdigit() and _network(int(path.name)) == network
    }
    mounted = {
        f"mount {line.split()[4]}"
        for line in _read(init, "mountinfo").splitlines()
        if re.search(rf" {re.escape(network)} ", line)
    }
    return inside | mounted


def _network(pid: int) -> str:
    try:
        return str((_PROC / str(pid) / "ns" / "net").readlink())
    except OSError:  # it has ended
        return ""


def _read(pid: int, what: str) -> str:
    try:
        return (_PROC / str(pid) / what).read_text()
    except OSError:  # it has ended
        return ""
