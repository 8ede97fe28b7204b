# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One round in this pod: from the fork of its training processes to their end."""

from __future__ import annotations

import dataclasses
import pathlib
import signal
import time
from typing import Any

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.faults.limit_raises import CpuCount
from rover_kf.api.membership import (
    Failure,
    FailureVerdict,
    Identity,
    Round,
    WatchReply,
    WatchRequest,
)
from rover_kf.elastic.failures.classify import classify, root_cause
from rover_kf.elastic.failures.rule import (
    BEYOND_CONTAINER,
    POD,
    RAISE_MEMORY,
    ExitEvidence,
    TrainingError,
)
from rover_kf.launcher import drain_file, oom_kills, rank_env, stack_dumps
from rover_kf.launcher.arguments import LaunchSpec
from rover_kf.launcher.event_loop import RETRY_SECONDS, EventLoop, StopRequested
from rover_kf.launcher.sidecar_requests import Call, CallCompleted
from rover_kf.launcher.worker_group import WorkerGroup
from rover_kf.launcher.zygote_client import ProcessExited

CGROUP_ROOT = pathlib.Path("/sys/fs/cgroup")
"""Where a container finds its own control groups."""
_MICRO, _NANO = 1e-6, 1e-9


def read_cpu_count(groups: pathlib.Path = CGROUP_ROOT) -> CpuCount | None:
    """Return the counts of now; None where there is no limit of cores, or it is unreadable."""
    v2 = (groups / "cpu.max").exists()
    cpu = groups if v2 else groups / "cpu"
    files = ["cpu.max"] if v2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    try:
        quota, period = " ".join((cpu / file).read_text() for file in files).split()
        if not quota.isdigit():  # max, or -1
            return None
        lines = (line.split() for line in (cpu / "cpu.stat").read_text().splitlines())
        counts = {name: int(count) for name, count in lines}
        if v2:
            used = counts["usage_usec"] * _MICRO
        else:
            used = int((groups / "cpuacct" / "cpuacct.usage").read_text()) * _NANO
        limit, seconds = int(quota) / int(period), int(period) * _MICRO
        return CpuCount(time.monotonic(), used, counts["nr_throttled"], seconds, limit)
    except (OSError, ValueError, KeyError):
        return None


CAUSE_SECONDS = 0.3
"""A process that says it lost a peer may have lost one of this pod: wait for its end so long."""


@dataclasses.dataclass(frozen=True, slots=True)
class RoundResult:
    """How a round ended here."""

    finished: bool = False
    """All processes ended with 0."""
    closed: WatchReply | None = None
    """The coordinator ended the job."""
    unusable_reason: str = ""
    """Why training cannot go on in this container, though the job goes on."""
    oom_limit: int = 0
    """Bytes that this container could use when a process was killed for memory; 0: none was."""


class RoundRunner:
    """A runner of one round in this pod.

    The world has ``drain_seconds`` to drain after the order to end. ``serves``: the process is a
    server that another pod's program drives.
    """

    def __init__(
        self,
        worker_group: WorkerGroup,
        event_loop: EventLoop,
        member: Identity,
        incarnation: str,
        *,
        drain_seconds: float,
        serves: bool = False,
    ) -> None:
        self.worker_group, self.event_loop = worker_group, event_loop
        self.member, self.incarnation = member, incarnation
        self.drain_seconds, self.serves = drain_seconds, serves
        self.drain_at = 0
        self.codes: dict[int, int] = {}
        self.rank_envs: tuple[rank_env.RankEnv, ...] = ()
        self._watch: Call[WatchReply] | None = None
        self._retry_at: float | None = None
        self._stop: StopRequested | None = None
        self._stop_until = 0.0
        self._memory_kills = 0

    def run(self, current: Round, launch: LaunchSpec, shared_dir: pathlib.Path) -> RoundResult:
        """Fork, watch, and wait for the end.

        Raises:
            StopRequested: the pod ends; with ``drained`` if the world has drained first.
        """
        drain_file.write(shared_dir, 0)
        self._memory_kills = oom_kills.count()
        self.rank_envs = rank_env.rank_envs(
            current,
            self.member,
            role=launch.role,
            shared_dir=shared_dir,
            inherited=self.worker_group.inherited,
        )
        self.worker_group.spawn(self.rank_envs, launch)
        self._request_watch(current)
        try:
            while True:
                try:
                    event = self.event_loop.next_event(self._pause(current))
                except StopRequested as stop:
                    self._request_drain(stop, current)
                    continue
                ended = None
                if isinstance(event, ProcessExited):
                    ended = self._on_exit(event, current)
                elif isinstance(event, CallCompleted) and event.call is self._watch:
                    ended = self._on_reply(event, current, shared_dir)
                if ended and self._stop and not (ended.finished or ended.closed):
                    saved = all(self._is_success(code) for code in self.codes.values())
                    drained = saved and not self.worker_group.live
                    raise StopRequested(str(self._stop), self._stop.received_at, drained=drained)
                if ended:
                    return ended
        finally:
            if self._watch:
                self._watch.cancel()

    def zygote_failure(self, current: Round) -> Failure:
        """What the coordinator is told when all processes died with the one they are forked from.

        It holds as much of the container's memory as any of them: the kernel may choose it.
        """
        killed = oom_kills.count() - self._memory_kills
        verdict = classify(ExitEvidence(-signal.SIGKILL, killed))
        if not killed:
            reason = "the process that training processes are forked from was killed"
            verdict = dataclasses.replace(verdict, scope=POD, reason=reason)
        rank = current.rank_offset(self.member.pod)
        return self._failure(current, rank, verdict, -signal.SIGKILL, time.time())

    def _failure(
        self, current: Round, rank: int, verdict: FailureVerdict, code: int, timestamp: float
    ) -> Failure:
        return Failure(
            pod=self.member.pod,
            incarnation=self.incarnation,
            round=current.number,
            rank=rank,
            exit_code=code,
            observed_at=timestamp,
            memory_limit=oom_kills.limit() if verdict.action == RAISE_MEMORY else 0,
            **dataclasses.asdict(verdict),
        )

    def report(self, failure: Failure) -> RoundResult:
        """Report a failure to the coordinator and follow its decision."""
        reply = self.event_loop.request(names.PATH_FAILURE, failure, WatchReply)
        if reply.action == "closed":
            return RoundResult(closed=reply)
        unfit = failure.reason if failure.action in BEYOND_CONTAINER else ""
        return RoundResult(unusable_reason=unfit, oom_limit=failure.memory_limit)

    # -- the pod's end --------------------------------------------------------------------------

    def _request_drain(self, stop: StopRequested, current: Round) -> None:
        """Ask for a drain, so that the steps since the last save are not done again by others.

        A server stays as it is for so long: where all pods end at once (a job is suspended), the
        program that drives it drains meanwhile, and cannot save without it.
        """
        if self._stop is not None:
            raise stop
        self._stop, self._stop_until = stop, stop.received_at + self.drain_seconds
        if self.serves:
            return
        if self._watch:
            self._watch.cancel()
        self._request_watch(current)

    # -- processes ------------------------------------------------------------------------------

    def _on_exit(self, event: ProcessExited, current: Round) -> RoundResult | None:
        self.codes[event.local_rank] = event.code
        if not self._is_success(event.code):
            return self._on_failure(event, current)
        if self.worker_group.live:
            return None
        return RoundResult(finished=not any(self.codes.values()))

    def _is_success(self, code: int) -> bool:
        return code == 0 or (code == names.EXIT_DRAINED and self.drain_at > 0)

    def _on_failure(self, event: ProcessExited, current: Round) -> RoundResult:
        seen = [self._classify(event.local_rank, event.code, current)]
        until = time.monotonic() + CAUSE_SECONDS
        while all(failure.consequence for failure in seen) and self.worker_group.live:
            left = until - time.monotonic()
            if left <= 0:
                break
            later = self.event_loop.next_event(left)
            if isinstance(later, ProcessExited) and not self._is_success(later.code):
                seen.append(self._classify(later.local_rank, later.code, current))
        self.worker_group.zygote.kill(9)
        ended = self.report(root_cause(seen))
        self.worker_group.kill(self.event_loop)
        return ended

    def _classify(self, local_rank: int, code: int, current: Round) -> Failure:
        place = self.rank_envs[local_rank]
        error = _read_error(pathlib.Path(place.error_file))
        killed = oom_kills.count() - self._memory_kills
        verdict = classify(
            ExitEvidence(code, killed, error, self.worker_group.stderr_tail(local_rank))
        )
        at = error.raised_at if error else time.time()
        return self._failure(current, place.rank, verdict, code, at)

    def _report_interrupted(self, current: Round) -> RoundResult | None:
        """A process that raised may have been killed before it ended: it may be the cause."""
        raised = [
            self._classify(place.local_rank, 1, current)
            for place in self.rank_envs
            if place.local_rank not in self.codes and pathlib.Path(place.error_file).exists()
        ]
        causes = [
            failure for failure in raised if failure.consumes_budget and not failure.consequence
        ]
        return self.report(root_cause(causes)) if causes else None

    # -- the coordinator's news -----------------------------------------------------------------

    def _request_watch(self, current: Round, *, include_world: bool = False) -> None:
        world = current if include_world else None
        leaving = self._stop is not None and not self.serves
        request = WatchRequest(
            self.member.pod,
            self.incarnation,
            current.number,
            self.drain_at,
            world,
            leaving,
            read_cpu_count(),
        )
        self._retry_at = None
        self._watch = self.event_loop.start(names.PATH_WATCH, request, WatchReply)

    def _pause(self, current: Round) -> float | None:
        now = time.monotonic()
        if self._stop is not None and now >= self._stop_until:
            raise self._stop
        if self._retry_at is not None and now >= self._retry_at:
            self._request_watch(current)
        times = [self._retry_at, self._stop_until if self._stop else None]
        return min((at - now for at in times if at is not None), default=None)

    def _on_reply(
        self, event: CallCompleted, current: Round, shared_dir: pathlib.Path
    ) -> RoundResult | None:
        if event.error is not None:
            if self._stop is not None and not self.drain_at:
                raise self._stop  # nobody is there who could let the world drain
            # Sidecar or coordinator are away: training goes on, ask again soon.
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return None
        reply: Any = event.value
        if reply.action in ("restart", "closed"):
            if reply.action == "restart":
                # A word at once: whoever is silent now is taken for dead soon.
                self._request_watch(current)
            self.worker_group.kill(self.event_loop)
            if reply.action == "closed":
                return RoundResult(closed=reply)
            return self._report_interrupted(current) or RoundResult()
        if reply.action == "stacks":
            nursery, client, pod = self.worker_group.zygote, self.event_loop.client, self.member.pod
            stack_dumps.start_collection(
                nursery, client, self.rank_envs, pod=pod, number=current.number
            )
        if reply.drain_at and reply.drain_at != self.drain_at:
            self.drain_at = reply.drain_at
            drain_file.write(shared_dir, reply.drain_at)
        self._request_watch(current, include_world=reply.action == "report")
        return None


def _read_error(path: pathlib.Path) -> TrainingError | None:
    try:
        return codec.loads(TrainingError, path.read_bytes())
    except (OSError, errors.ProtocolError):
        return None  # killed before it could write, or while it did
