# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Bridge, network namespaces and routes: a flat pod network without tunnels.

Namespace rk0 is the control plane's, rk1 … the nodes'. Names are fixed, so a machine has one such
cluster at a time; cluster.py's lock sees to that.
"""

from __future__ import annotations

import json
import pathlib

from testcluster.commands import run, succeeds

BRIDGE, GATEWAY = "rkbr0", "172.30.0.1"
PODS, SERVICES, API_SERVICE = "10.244.0.0/16", "10.96.0.0/16", "10.96.0.1"
_NAMESPACES = pathlib.Path("/run/netns")


def namespace(index: int) -> str:
    """Name of the network namespace, which is also the node's."""
    return f"rk{index}"


def address(index: int) -> str:
    """Address on the bridge: .10 is the control plane, .11 the first node."""
    return f"172.30.0.{10 + index}"


def pod_range(index: int) -> str:
    """Addresses of a node's pods."""
    return f"10.244.{index}.0/24"


def enter(index: int) -> list[str]:
    """Words before a command that run it in the namespace.

    nsenter, not `ip netns exec`: that one remounts /sys, and the kubelet then finds no control
    groups.
    """
    return ["nsenter", f"--net={_NAMESPACES / namespace(index)}"]


def create(nodes: int) -> None:
    """Make the bridge and all namespaces; pods reach each other through their nodes' routes."""
    run(f"ip link add {BRIDGE} type bridge")
    run(f"ip addr add {GATEWAY}/24 dev {BRIDGE}")
    run(f"ip link set {BRIDGE} up")
    for index in range(nodes + 1):
        _create_namespace(index, nodes)
        if index:
            run(f"ip route replace {pod_range(index)} via {address(index)}")


def _create_namespace(index: int, nodes: int) -> None:
    name = namespace(index)
    run(f"ip netns add {name}")
    run(f"ip link add ve{name} type veth peer name eth0 netns {name}")
    run(f"ip link set ve{name} master {BRIDGE} up")
    routes = [
        f"route add {pod_range(other)} via {address(other)}"
        for other in range(1, nodes + 1)
        if other != index
    ]
    commands = [
        f"addr add {address(index)}/24 dev eth0",
        "link set eth0 up",
        "link set lo up",
        f"route add default via {GATEWAY}",
        *routes,
    ]
    run(["ip", "-n", name, "-batch", "-"], text="\n".join(commands) + "\n")
    run(
        [
            *enter(index),
            "sysctl",
            "-qw",
            "net.ipv4.ip_forward=1",
            "net.bridge.bridge-nf-call-iptables=1",
        ]
    )


def unplug(index: int) -> None:
    """Cut a node off at once: what its processes still say as they end is not heard."""
    run(f"ip link set ve{namespace(index)} down")


def plug(index: int) -> None:
    """Connect an unplugged node again."""
    run(f"ip link set ve{namespace(index)} up")


def forget_pods(index: int) -> None:
    """Remove the links of a node's pods, whose processes have ended.

    The kernel keeps a network namespace as long as one of its connections waits for an answer; the
    address of a pod that is gone would go on to answer for minutes, and no other pod could have it.
    """
    name = namespace(index)
    for link in json.loads(run(f"ip -n {name} -json link show type veth")):
        if "master" in link:
            # The kernel may be removing it along with its peer just now.
            succeeds(f"ip -n {name} link delete {link['ifname']}")


def existing() -> list[str]:
    """Namespaces of ours that are there, from this run or a dead one."""
    return sorted(path.name for path in _NAMESPACES.glob("rk[0-9]*") if path.name[2:].isdigit())


def destroy() -> None:
    """Remove every namespace and link of ours, and with the bridge the routes through it."""
    for name in existing():
        run(f"ip netns del {name}")
        if _is_there(f"ve{name}"):
            # The kernel may be removing it along with its peer just now.
            succeeds(f"ip link del ve{name}")
    if _is_there(BRIDGE):
        run(f"ip link del {BRIDGE}")


def _is_there(link: str) -> bool:
    # Not by /sys: it tells of the network namespace that it was mounted in.
    return succeeds(f"ip link show {link}")
