# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Removes everything a cluster has made, also one whose maker was killed at any moment.

Ended are only recorded processes (pid and start time match) and those in our own control groups;
removed are only our namespaces (rk0, rk1, …), our bridge, our control groups and the run directory.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import signal

from testcluster import cgroups, network
from testcluster.errors import ClusterError
from testcluster.processes import Daemon, Registry, start_time, wait_ended

MARKER = "rover-kf-testcluster"
"""File whose presence says that a directory is a run directory and may be deleted."""


def remove(root: pathlib.Path) -> None:
    """Leave nothing of the cluster in ``root``; doing it twice is no error.

    Raises:
        ClusterError: something cannot be removed, or the directory is not one of ours.
    """
    if root.exists() and any(root.iterdir()) and not (root / MARKER).exists():
        raise ClusterError(
            f"{root} is not a test cluster's directory (no file {MARKER}); nothing was removed"
        )
    registry = Registry(root / "processes", root / "log")
    daemons = registry.all()
    # First processes of nodes: the kernel ends what is inside, shims and containers too.
    _kill([daemon for daemon in daemons if daemon.name.endswith("-init")])
    registry.stop(registry.all())
    nodes = [name for name in network.existing() if name != network.namespace(0)]
    for name in nodes:
        _kill(
            [
                Daemon(name, pid, began)
                for pid in cgroups.processes(name)
                if (began := start_time(pid)) is not None
            ]
        )
    for name in {*nodes, *(path.name for path in root.glob("rk[0-9]*") if path.is_dir())}:
        cgroups.remove(name)
    network.destroy()
    _remove_tree(root)


def _kill(daemons: list[Daemon]) -> None:
    for daemon in daemons:
        daemon.signal(signal.SIGKILL)
    if not wait_ended(daemons, 20):
        raise ClusterError(
            f"still alive after SIGKILL: {[item for item in daemons if item.alive()]}"
        )


def _remove_tree(root: pathlib.Path) -> None:
    """Delete the run directory; never through a mount, which may be anyone's files.

    One that is a mount itself (a tmpfs, another disk) is emptied.
    """
    with pathlib.Path("/proc/self/mountinfo").open(encoding="utf-8") as mounts:
        places = [line.split()[4] for line in mounts]
    inside = [place for place in places if place.startswith(f"{root}{os.sep}")]
    if inside:
        raise ClusterError(
            f"mounts are left below {root}: {inside}; unmount them, nothing was deleted"
        )
    if str(root) not in places:
        if root.exists():
            shutil.rmtree(root)
        return
    for path in root.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
