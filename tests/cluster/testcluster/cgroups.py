# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One control group a node, under every controller (v1) or in the one tree (v2)."""

from __future__ import annotations

import os
import pathlib

from testcluster.errors import ClusterError
from testcluster.waiting import until

_ROOT = pathlib.Path("/sys/fs/cgroup")
_CONTROLLERS = (
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "devices",
    "freezer",
    "blkio",
    "pids",
    "systemd",
    "hugetlb",
    "unified",
)


def _roots() -> list[pathlib.Path]:
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [_ROOT / name for name in _CONTROLLERS if (_ROOT / name).is_dir()]


_WEIGHTS = {"cpu.shares": "8192", "cpu.weight": "800"}
"""A node's part of the processors against a single process outside it, which has an eighth.

With the default all pods of a node together would get no more than any one process of the machine.
"""


def create(name: str) -> None:
    """Make the group where it is not there yet."""
    for root in _roots():
        group = root / name
        if root == _ROOT:
            wanted = (root / "cgroup.controllers").read_text().split()
            (root / "cgroup.subtree_control").write_text(" ".join(f"+{item}" for item in wanted))
        group.mkdir(exist_ok=True)
        for key, weight in _WEIGHTS.items():
            if (group / key).exists():
                (group / key).write_text(weight)
        if root.name == "cpuset":  # a fresh v1 cpuset is empty and takes no process
            for key in ("cpuset.cpus", "cpuset.mems"):
                (group / key).write_text((root / key).read_text())


_PERIOD = 20_000
"""Microseconds; shorter than the kernel's own choice, so that no burst of a tenth of a second is
free."""


def throttle(name: str, container: str, cores: float) -> None:
    """Give a container of the node so much of a core at most, until it ends.

    Args:
        name: of the node.
        container: its id.
        cores: processors; 0.15 is 3 of each 20 ms.

    Raises:
        ClusterError: the container has no group there.
    """
    quota = int(cores * _PERIOD)
    found = [group for group in _groups(name) if group.name == container]
    for group in found:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota} {_PERIOD}")
        elif (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
    if not found:
        raise ClusterError(f"{name} has no control group of container {container}")


def below(name: str, part: str) -> list[pathlib.Path]:
    """Groups anywhere below the node's whose names have that in them, in every hierarchy."""
    return [group for group in _groups(name) if part in group.name]


def remove(name: str) -> None:
    """Remove the group with all below it; its processes must have ended."""
    for root in _roots():
        group = root / name
        if not until(lambda group=group: not group.exists() or _remove_tree(group), seconds=10):
            raise ClusterError(f"control group {group} still has processes")


def _remove_tree(group: pathlib.Path) -> bool:
    folders = [pathlib.Path(folder) for folder, _, _ in os.walk(group, topdown=False)]
    return all(_remove_one(folder) for folder in folders)


def _remove_one(group: pathlib.Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False  # a process is on its way out
    return True


def processes(name: str) -> list[int]:
    """Processes anywhere below the group, in every hierarchy."""
    found = set()
    for group in _groups(name):
        found |= _listed(group / "cgroup.procs")
    return sorted(found)


def _groups(name: str) -> list[pathlib.Path]:
    """The node's group and all below it, in every hierarchy; any may end meanwhile."""
    # Not pathlib's own walk: it fails where a folder goes before it is looked into.
    return [pathlib.Path(folder) for root in _roots() for folder, _, _ in os.walk(root / name)]


def _listed(listing: pathlib.Path) -> set[int]:
    try:
        return {int(word) for word in listing.read_text().split()}
    except OSError:
        return set()  # the group went away, or is threaded: another hierarchy names its processes
