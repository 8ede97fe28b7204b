# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job that this process runs: its pods and what it holds of the machine; used by ``operator``.

Loopback addresses are pod addresses: 127.1.J.I, J a job, I its replica. J is leased by a bound
socket, so that several embedded clusters on a machine do not meet and a killed one gives its
addresses back. A replica keeps its address when its pod is replaced: names were written into its
peers' environment as addresses when they started.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import socket
import time
import zlib
from typing import IO, Literal

from rover_kf import errors
from rover_kf.api.jobs import JobKey, Manifest, Pod
from rover_kf.cluster.local.job_conditions import JobCondition
from rover_kf.cluster.local.pod import LocalPod
from rover_kf.cluster.local.settings import Timing
from rover_kf.cluster.local.store import Record

# A job that a limit has ended takes all its pods with it, whatever cleanPodPolicy says; of any
# other one cleanPodPolicy tells which are deleted (pkg/controller.v1/common/job.go,
# DeletePodsAndServices). In a cluster those that it leaves alone go on as long as they like. Here
# they would go on at the cost of the machine that somebody works at: after a while they are ended,
# and only their processes, volumes and sockets go. The pod stays as one that has ended, so that
# its logs can be read.
CleanupAction = Literal["leave", "end", "delete"]


_ACTIVE = ("Pending", "Running")


def pod_action(manifest: Manifest, phase: str, *, since: float, timing: Timing) -> CleanupAction:
    """Return what to do with one pod of a job, so many seconds after the job finished."""
    policy = (manifest["spec"].get("runPolicy") or {}).get("cleanPodPolicy", "None")
    if policy == "All" or (policy == "Running" and phase in _ACTIVE):
        return "delete"
    conditions = (manifest.get("status") or {}).get("conditions") or []
    failed = any(c["type"] == "Failed" and c["status"] == "True" for c in conditions)
    patience = timing.after_failure if failed else timing.after_success
    return "end" if phase in _ACTIVE and since >= patience else "leave"


_log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class JobRuntime:
    """One a job."""

    key: JobKey
    owner: IO[bytes]
    """The lock that says who runs it."""
    lease: NetworkLease
    pods: dict[tuple[str, int], LocalPod] = dataclasses.field(default_factory=dict)
    started_at: float = 0.0
    shown: tuple[Pod, ...] = ()
    seen: tuple[str, bool, tuple[Pod, ...]] | None = None
    """What the last look was based on."""
    cleaned: bool = False
    """It has finished and nothing of it runs."""
    emitted: JobCondition | None = None
    """What an Event says already, and the object does not yet."""
    warned: str = ""
    """What was said last and still holds."""

    def drop_gone_pods(self) -> None:
        """Free the names of pods that are deleted and have ended."""
        for place in [place for place, pod in self.pods.items() if pod.gone]:
            del self.pods[place]

    def needs_resync(self, record: Record) -> bool:
        """Whether time alone may change what there is to do."""
        if record.finished_at is not None:
            return not self.cleaned
        return "activeDeadlineSeconds" in (record.manifest["spec"].get("runPolicy") or {})

    def delete_pods(self) -> None:
        """Delete all of them."""
        for pod in self.pods.values():
            pod.delete()

    def end_pods(self) -> None:
        """End what runs in all of them; the pods and their logs stay."""
        for pod in self.pods.values():
            pod.end()

    def clean_up(self, record: Record, timing: Timing) -> None:
        """Delete or end the pods of a finished job that are to go; then its addresses are free."""
        since = time.time() - (record.finished_at or 0.0)
        for pod in self.pods.values():
            fate = pod_action(record.manifest, pod.phase, since=since, timing=timing)
            if fate == "delete":
                pod.delete()
            elif fate == "end":
                pod.end()
        self.cleaned = all(pod.ended for pod in self.pods.values())
        if self.cleaned:
            self.lease.close()

    def warn(self, message: str) -> None:
        """Say what keeps the job from being looked after, once while it is the same."""
        if message != self.warned:
            self.warned = message
            _log.warning("%s", message)

    def close(self) -> None:
        """Give back what the job holds of this process."""
        self.lease.close()
        self.owner.close()


LEASE_PORT = 7410
"""Of the last address of a job's network; whoever has bound it has the network."""
_MOST_PODS = 250


class NetworkLease:
    """One job's addresses; ``close`` gives them back."""

    def __init__(self, job: str, masters: int) -> None:
        self._job, self._masters = job, masters
        self._socket, self._net = _bind(job)

    def address(self, replica_type: str, index: int) -> str:
        """Return the address of a replica; InputError if there are more than addresses."""
        rank = index + (self._masters if replica_type == "worker" else 0)
        if rank >= _MOST_PODS:
            raise errors.InputError(
                f"job {self._job} wants replica {rank}; embedded jobs have at most {_MOST_PODS}"
            )
        return f"127.1.{self._net}.{rank + 1}"

    def resolve(self, text: str, namespace: str) -> str:
        """Replace the job's service names in a text by addresses."""
        pattern = (
            rf"(?<![\w.-]){re.escape(self._job)}-(master|worker)-(\d+)"
            rf"(?:\.{re.escape(namespace)}(?:\.svc(?:\.cluster\.local)?)?)?(?![\w-])"
        )
        return re.sub(pattern, lambda hit: self.address(hit[1], int(hit[2])), text)

    def close(self) -> None:
        """Give the addresses back."""
        self._socket.close()


def _bind(job: str) -> tuple[socket.socket, int]:
    start = zlib.crc32(job.encode())
    for offset in range(256):
        net = (start + offset) % 256
        lease = socket.socket()
        with contextlib.suppress(OSError):
            lease.bind((f"127.1.{net}.255", LEASE_PORT))
            return lease, net
        lease.close()
    raise errors.ClusterUnavailable("all 256 loopback networks are in use; end another job first")
