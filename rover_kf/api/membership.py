# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who takes part in training, when, and where pods are: between launcher, sidecars and coordinator.

The controller knows the addresses of pods better than a name server.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api.faults.limit_raises import CpuCount


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Which replica this pod is (sidecar → launcher and trainer)."""

    job: str
    pod: str
    address: str
    """IP address that other pods reach this one at."""
    node_rank: int
    coordinator: bool
    """Whether this pod's sidecar has the coordinator's role."""
    node: str = ""
    """Kubernetes node of the pod; empty: not known."""
    preflight: bool = False
    """Whether the launcher shall ask for a check before it joins."""


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A launcher that takes part, or wants to."""

    pod: str
    """Pod name; unique in the job at one time."""
    incarnation: str
    """Changes whenever the launcher starts anew (pod uid and process start)."""
    node_rank: int
    """Replica order over the job: Master-0 is 0, Worker-i follows. Stable."""
    processes: int
    """Training processes it will start (nproc per node)."""
    node: str = ""
    """Kubernetes node of the pod; empty: not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class JoinRequest:
    """A launcher is ready to start its processes; answered when the round is complete."""

    member: Member
    store_host: str
    store_port: int
    """Of the TCPStore that this member has opened for the round; rank 0's is used."""
    last_round: int = 0
    """Round that it took part in before, 0 at first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """A world that starts now."""

    number: int
    members: tuple[Member, ...]
    """In rank order."""
    world_size: int
    store_host: str
    store_port: int
    generation: int = 0
    """Of the coordinator that starts it."""

    def rank_offset(self, pod: str) -> int:
        """Global rank of the pod's first process."""
        offset = 0
        for member in self.members:
            if member.pod == pod:
                return offset
            offset += member.processes
        raise KeyError(pod)

    def rank_locations(self) -> tuple[tuple[str, int], ...]:
        """Of each global rank, in order, the pod and its number there."""
        return tuple((one.pod, local) for one in self.members for local in range(one.processes))

    def member_label(self, member: Member) -> str:
        """The pod with its global ranks; without them if it takes no part."""
        if member not in self.members:
            return member.pod
        first = self.rank_offset(member.pod)
        last = first + member.processes - 1
        return f"{member.pod} (rank {first}{f' to {last}' if last > first else ''})"


@dataclasses.dataclass(frozen=True, slots=True)
class JoinReply:
    """Either a round to start, or the order to wait or to end."""

    action: str
    """``start`` (round is set), ``wait`` (nothing yet: ask the same again), ``retry`` (run again:
    join), ``drained`` (idle until SIGTERM), ``closed`` (end with exit_code), ``report`` (to a
    finish: the coordinator is new, send it again with the world)."""
    round: Round | None = None
    exit_code: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class WatchRequest:
    """Long poll of a launcher whose processes run; its connection is its sign of life."""

    pod: str
    incarnation: str
    round: int
    drain_at: int = 0
    """The drain step it already knows, so that the reply comes only for news."""
    world: Round | None = None
    """The whole round, sent only after a ``report``: a new coordinator adopts it."""
    leaving: bool = False
    """The pod is ending (SIGTERM): let the world drain, then go on without it."""
    cpu: CpuCount | None = None
    """Of its container, where its cores are limited."""


@dataclasses.dataclass(frozen=True, slots=True)
class WatchReply:
    """News for a running member."""

    action: str
    """``none`` (poll again), ``drain`` (trainers save and leave at drain_at, then join again),
    ``restart`` (kill the processes and join again), ``closed`` (kill, end with exit_code),
    ``report`` (the coordinator is new: send the watch again with the world), ``stacks`` (send a
    StackReport, go on)."""
    drain_at: int = 0
    exit_code: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class LeaveRequest:
    """A launcher goes for good (SIGTERM, drained)."""

    pod: str
    incarnation: str
    reason: str = ""
    drained: bool = False
    """Its processes have saved at the drain step: the others may finish that step in peace."""


@dataclasses.dataclass(frozen=True, slots=True)
class StateHandedOverRequest:
    """A launcher that goes asks whether the others have what only its pod had in memory."""

    round: int
    """That it trained in last."""
    timeout_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class FailureVerdict:
    """The meaning of the end of a process, a container or a pod (elastic.failures)."""

    kind: str
    """``process_killed``, ``peer_lost``, ``user_error``, … (docs/failures.md has them all)."""
    scope: str
    """``process``, ``container``, ``pod``, ``node`` or ``job``: how far the damage reaches."""
    action: str
    """``restart``, ``raise_memory``, ``replace_pod``, ``fail_job``, …: what helps."""
    reason: str
    """One sentence; for a user error the traceback's last lines."""
    consumes_budget: bool = True
    """Whether it spends the budget of restarts (a lost peer does not)."""
    consequence: bool = False
    """Whether the end of another process explains it."""
    signature: str = ""
    """The same for the same error in the same place; empty where that would prove nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failure(FailureVerdict):
    """A launcher's report of a dead training process."""

    pod: str
    incarnation: str
    round: int
    rank: int
    exit_code: int
    """Negative: the signal's number."""
    observed_at: float = 0.0
    """When it was seen; Unix seconds of the pod's node."""
    memory_limit: int = 0
    """Of a kill for memory: bytes that the container could use; 0: not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class FinishRequest:
    """All processes of a member ended with 0; answered when all members' have."""

    pod: str
    incarnation: str
    round: int
    world: Round | None = None
    """The whole round, sent only after a ``report``: a coordinator that is new adopts it."""


@dataclasses.dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """Body of PATH_COORDINATOR."""

    address: str
    """IP address of the job's first pod."""


@dataclasses.dataclass(frozen=True, slots=True)
class PodAddresses:
    """Body of PATH_PODS: pods that a round waits for, and that run."""

    addresses: dict[str, str]
    """IP address by the pod's name."""
