# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Processes of a pod: from outside, on the machine, or from inside, through kubectl exec."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import signal
from typing import Any, Protocol

from testcluster import cgroups
from testcluster.commands import Kubectl
from testcluster.errors import ClusterError, CommandFailed
from testcluster.processes import command_line, start_time


@dataclasses.dataclass(frozen=True, slots=True)
class PodProcess:
    """A process of a pod."""

    namespace: str
    pod: str
    container: str
    """The container's id from outside, its name from inside."""
    pid: int
    """As whoever found it counts: the machine's, or the container's own."""
    command: str


class Processes(Protocol):
    """A way to the processes of pods."""

    def of(self, namespace: str, pod: str, container: str = "") -> list[PodProcess]:
        """The pod's (or one container's) processes, oldest first.

        Raises:
            ClusterError: there is no such pod, or no such container has started.
        """

    def send(self, number: signal.Signals, process: PodProcess) -> None:
        """Signal one of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class OnMachine:
    """Nodes whose processes are this machine's: nothing in the pod takes part."""

    cluster: Kubectl

    def of(self, namespace: str, pod: str, container: str = "") -> list[PodProcess]:
        """See Processes."""
        found = _read(self.cluster, namespace, pod)
        uid = found["metadata"]["uid"]
        wanted = _container_id(found, container) if container else ""
        listed = []
        for pid in cgroups.processes(found["spec"]["nodeName"]):
            holder, command = _container_of(pid, uid), command_line(pid)
            if holder and holder.startswith(wanted) and command:
                listed.append(PodProcess(namespace, pod, holder, pid, command))
        return sorted(listed, key=lambda process: start_time(process.pid) or 0)

    def send(self, number: signal.Signals, process: PodProcess) -> None:
        """See Processes."""
        os.kill(process.pid, number)


# The shell, which has to be in the image, tells its own number first. `cat` is not among the
# places, which are listed before it starts.
_LIST = r"""
echo $$
for place in /proc/[0-9]*; do
  { read -r stat <$place/stat && printf '\036%s\037' "$stat" && cat $place/cmdline; } 2>/dev/null
done
true
"""
_UNHEARD = (signal.SIGKILL, signal.SIGSTOP)
_KILLED = 128 + signal.SIGKILL


@dataclasses.dataclass(frozen=True, slots=True)
class ByExec:
    """A cluster of which no more is known than its API: the container's shell does it."""

    cluster: Kubectl

    def of(self, namespace: str, pod: str, container: str = "") -> list[PodProcess]:
        """See Processes."""
        found = _read(self.cluster, namespace, pod)
        names = [container] if container else [item["name"] for item in found["spec"]["containers"]]
        listed = []
        for name in names:
            told = self._shell(namespace, pod, name, _LIST)
            listed += [
                (started, PodProcess(namespace, pod, name, pid, line))
                for started, pid, line in _told(told)
            ]
        return [process for _, process in sorted(listed, key=lambda item: item[0])]

    def send(self, number: signal.Signals, process: PodProcess) -> None:
        """See Processes.

        Raises:
            ClusterError: it is the container's first process, which does not hear that signal.
        """
        if process.pid == 1 and number in _UNHEARD:
            raise ClusterError(
                f"{process.command!r} is the first process of container {process.container} of "
                f"{process.pod}: the kernel keeps {number.name} from it if it is sent from inside; "
                "let the container start it as a child"
            )
        word = number.name.removeprefix("SIG")
        script = f"kill -s {word} {process.pid}"
        try:
            self._shell(process.namespace, process.pod, process.container, script)
        except CommandFailed as failure:
            if failure.code != _KILLED:
                raise
            # The container ended with that process, and this shell with the container.

    def _shell(self, namespace: str, pod: str, container: str, script: str) -> str:
        words = ("-n", namespace, "exec", pod, "-c", container, "--", "sh", "-c", script)
        return self.cluster.kubectl(*words, timeout=30)


def _told(output: str) -> list[tuple[int, int, str]]:
    """(ticks at its start, number, command line) of each process that _LIST found, but the shell's.

    Zombies are left out, as are those that ended meanwhile.
    """
    own, *records = output.split("\036")
    found = []
    for record in records:
        stat, _, command = record.partition("\037")
        pid, fields = int(stat.split()[0]), stat.rpartition(")")[2].split()
        line = command.replace("\0", " ").strip()
        if pid != int(own) and fields[0] not in "ZX" and line:
            found.append((int(fields[19]), pid, line))
    return found


def placed(cluster: Kubectl, namespace: str, pod: str, container: str) -> tuple[str, str]:
    """Node and id of a container that has started.

    Raises:
        ClusterError: there is no such pod, or it has not started.
    """
    found = _read(cluster, namespace, pod)
    return found["spec"]["nodeName"], _container_id(found, container)


def _read(cluster: Kubectl, namespace: str, pod: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        cluster.kubectl("-n", namespace, "get", "pod", pod, "-o", "json")
    )
    return found


def _container_id(pod: dict[str, Any], name: str) -> str:
    status = pod["status"]
    every = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    found = next((item.get("containerID", "") for item in every if item["name"] == name), "")
    if not found:
        raise ClusterError(f"{pod['metadata']['name']} has no started container {name!r}")
    return found.rpartition("/")[2]


def _container_of(pid: int, uid: str) -> str:
    """Container id if the process belongs to the pod, else nothing."""
    try:
        groups = pathlib.Path(f"/proc/{pid}/cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    match = re.search(rf"/pod{re.escape(uid)}/([0-9a-f]{{64}})", groups)
    return match.group(1) if match else ""
