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
from rover_kf.api.faults.cpu_raises import CpuCount
from rover_kf.api.membership import Failure, Identity, Round, WatchReply, WatchRequest
from rover_kf.elastic.failures.classify import classify, first
from rover_kf.elastic.failures.evidence import Evidence, TrainingError, Verdict
from rover_kf.elastic.failures.rule import BEYOND_CONTAINER, POD, RAISE_MEMORY
from rover_kf.launcher import drain_file, oom_kills, rank_env, stack_dumps
from rover_kf.launcher.arguments import Launch
from rover_kf.launcher.event_loop import RETRY_SECONDS, Errands, Stop
from rover_kf.launcher.sidecar_requests import Call, Replied
from rover_kf.launcher.worker_group import Crew
from rover_kf.launcher.zygote_client import Exited

GROUPS = pathlib.Path("/sys/fs/cgroup")


"""Where a container finds its own control groups."""


_MICRO, _NANO = 1e-6, 1e-9


def read(groups: pathlib.Path = GROUPS) -> CpuCount | None:
    """The counts of now; None where the container has no limit of cores, or none can be read."""
    try:
        return _second(groups) if (groups / "cpu.max").exists() else _first(groups)
    except (OSError, ValueError, KeyError):
        return None


def _second(group: pathlib.Path) -> CpuCount | None:
    """Of the second version of control groups."""
    quota, period = (group / "cpu.max").read_text().split()
    if not quota.isdigit():
        return None
    counts = _counts(group)
    used = counts["usage_usec"] * _MICRO
    return _count(int(quota), int(period), used, counts["nr_throttled"])


def _first(groups: pathlib.Path) -> CpuCount | None:
    cpu = groups / "cpu"
    quota = int((cpu / "cpu.cfs_quota_us").read_text())
    if quota <= 0:
        return None
    period = int((cpu / "cpu.cfs_period_us").read_text())
    used = int((groups / "cpuacct" / "cpuacct.usage").read_text()) * _NANO
    return _count(quota, period, used, _counts(cpu)["nr_throttled"])


def _count(quota: int, period: int, used: float, throttled: int) -> CpuCount:
    return CpuCount(time.monotonic(), used, throttled, period * _MICRO, quota / period)


def _counts(group: pathlib.Path) -> dict[str, int]:
    words = (line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return {name: int(count) for name, count in words}


CAUSE_SECONDS = 0.3


"""A process that says it lost a peer may have lost one of this pod: wait for its end so long."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How a round ended here."""

    finished: bool = False
    """All processes ended with 0."""
    closed: WatchReply | None = None
    """The coordinator ended the job."""
    unfit: str = ""
    """Why training cannot go on in this container, though the job goes on."""
    starved: int = 0
    """Bytes that this container could use when a process was killed for memory; 0: none was."""


class Session:
    """Runs one round.

    Args:
        crew: the pod's training processes.
        errands: events and requests.
        member: the pod.
        incarnation: of the launcher.
        drain_seconds: that the world has to drain once this pod was told to end.
        serves: its process is a server that another pod's program drives.
    """

    def __init__(
        self,
        crew: Crew,
        errands: Errands,
        member: Identity,
        incarnation: str,
        *,
        drain_seconds: float,
        serves: bool = False,
    ) -> None:
        self.crew, self.errands = crew, errands
        self.member, self.incarnation = member, incarnation
        self.drain_seconds, self.serves = drain_seconds, serves
        self.drain_at = 0
        self.codes: dict[int, int] = {}
        self.places: tuple[rank_env.Place, ...] = ()
        self._watch: Call[WatchReply] | None = None
        self._retry_at: float | None = None
        self._stop: Stop | None = None
        self._stop_until = 0.0
        self._memory_kills = 0

    def run(self, current: Round, launch: Launch, home: pathlib.Path) -> Ended:
        """Fork, watch, and see to the end.

        Raises:
            Stop: the pod ends; with ``drained`` if the world has drained first.
        """
        drain_file.write(home, 0)
        self._memory_kills = oom_kills.count()
        self.places = rank_env.places(
            current, self.member, role=launch.role, home=home, inherited=self.crew.inherited
        )
        self.crew.spawn(self.places, launch)
        self._ask(current)
        try:
            while True:
                try:
                    event = self.errands.next_event(self._pause(current))
                except Stop as stop:
                    self._drain_first(stop, current)
                    continue
                ended = None
                if isinstance(event, Exited):
                    ended = self._on_exit(event, current)
                elif isinstance(event, Replied) and event.call is self._watch:
                    ended = self._on_reply(event, current, home)
                if ended and self._stop and not (ended.finished or ended.closed):
                    raise Stop(str(self._stop), self._stop.at, drained=self._drained())
                if ended:
                    return ended
        finally:
            if self._watch:
                self._watch.cancel()

    def zygote_lost(self, current: Round) -> Failure:
        """What the coordinator is told when all processes died with the one they are forked from.

        It holds as much of the container's memory as any of them: the kernel may choose it.
        """
        killed = oom_kills.count() - self._memory_kills
        verdict = classify(Evidence(-signal.SIGKILL, killed))
        if not killed:
            reason = "the process that training processes are forked from was killed"
            verdict = dataclasses.replace(verdict, scope=POD, reason=reason)
        rank = current.rank_offset(self.member.pod)
        return self._failure(current, rank, verdict, -signal.SIGKILL, time.time())

    def _failure(
        self, current: Round, rank: int, verdict: Verdict, code: int, at: float
    ) -> Failure:
        starved = verdict.action == RAISE_MEMORY
        return Failure(
            pod=self.member.pod,
            incarnation=self.incarnation,
            round=current.number,
            rank=rank,
            kind=verdict.kind,
            scope=verdict.scope,
            action=verdict.action,
            exit_code=code,
            reason=verdict.reason,
            counts=verdict.counts,
            consequence=verdict.consequence,
            signature=verdict.signature,
            at=at,
            memory_limit=oom_kills.limit() if starved else 0,
        )

    def report(self, failure: Failure) -> Ended:
        """Tell the coordinator of a failure; what it says goes."""
        reply = self.errands.ask(names.PATH_FAILURE, failure, WatchReply)
        if reply.action == "closed":
            return Ended(closed=reply)
        unfit = failure.reason if failure.action in BEYOND_CONTAINER else ""
        return Ended(unfit=unfit, starved=failure.memory_limit)

    # -- the pod's end --------------------------------------------------------------------------

    def _drain_first(self, stop: Stop, current: Round) -> None:
        """Ask for a drain, so that the steps since the last save are not done again by others.

        A server stays as it is for so long: where all pods end at once (a job is suspended), the
        program that drives it drains meanwhile, and cannot save without it.
        """
        if self._stop is not None:
            raise stop
        self._stop, self._stop_until = stop, stop.at + self.drain_seconds
        if self.serves:
            return
        if self._watch:
            self._watch.cancel()
        self._ask(current)

    def _drained(self) -> bool:
        return not self.crew.live and all(self._well(code) for code in self.codes.values())

    # -- processes ------------------------------------------------------------------------------

    def _on_exit(self, event: Exited, current: Round) -> Ended | None:
        self.codes[event.local_rank] = event.code
        if not self._well(event.code):
            return self._on_failure(event, current)
        if self.crew.live:
            return None
        return Ended(finished=not any(self.codes.values()))

    def _well(self, code: int) -> bool:
        return code == 0 or (code == names.EXIT_DRAINED and self.drain_at > 0)

    def _on_failure(self, event: Exited, current: Round) -> Ended:
        seen = [self._classify(event.local_rank, event.code, current)]
        until = time.monotonic() + CAUSE_SECONDS
        while all(failure.consequence for failure in seen) and self.crew.live:
            left = until - time.monotonic()
            if left <= 0:
                break
            later = self.errands.next_event(left)
            if isinstance(later, Exited) and not self._well(later.code):
                seen.append(self._classify(later.local_rank, later.code, current))
        self.crew.nursery.kill(9)
        ended = self.report(first(seen))
        self.crew.kill(self.errands)
        return ended

    def _classify(self, local_rank: int, code: int, current: Round) -> Failure:
        place = self.places[local_rank]
        error = _read_error(pathlib.Path(place.error_file))
        killed = oom_kills.count() - self._memory_kills
        verdict = classify(Evidence(code, killed, error, self.crew.last_words(local_rank)))
        at = error.at if error else time.time()
        return self._failure(current, place.rank, verdict, code, at)

    def _tell_what_was_cut_off(self, current: Round) -> Ended | None:
        """A process that raised may have been killed before it ended: it may be the cause."""
        raised = [
            self._classify(place.local_rank, 1, current)
            for place in self.places
            if place.local_rank not in self.codes and pathlib.Path(place.error_file).exists()
        ]
        causes = [failure for failure in raised if failure.counts and not failure.consequence]
        return self.report(first(causes)) if causes else None

    # -- the coordinator's news -----------------------------------------------------------------

    def _ask(self, current: Round, *, tell_world: bool = False) -> None:
        world = current if tell_world else None
        leaving = self._stop is not None and not self.serves
        request = WatchRequest(
            self.member.pod,
            self.incarnation,
            current.number,
            self.drain_at,
            world,
            leaving,
            read(),
        )
        self._retry_at = None
        self._watch = self.errands.start(names.PATH_WATCH, request, WatchReply)

    def _pause(self, current: Round) -> float | None:
        now = time.monotonic()
        if self._stop is not None and now >= self._stop_until:
            raise self._stop
        if self._retry_at is not None and now >= self._retry_at:
            self._ask(current)
        times = [self._retry_at, self._stop_until if self._stop else None]
        return min((at - now for at in times if at is not None), default=None)

    def _on_reply(self, event: Replied, current: Round, home: pathlib.Path) -> Ended | None:
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
                self._ask(current)
            self.crew.kill(self.errands)
            if reply.action == "closed":
                return Ended(closed=reply)
            return self._tell_what_was_cut_off(current) or Ended()
        if reply.action == "stacks":
            nursery, client, pod = self.crew.nursery, self.errands.client, self.member.pod
            stack_dumps.send(nursery, client, self.places, pod=pod, number=current.number)
        if reply.drain_at and reply.drain_at != self.drain_at:
            self.drain_at = reply.drain_at
            drain_file.write(home, reply.drain_at)
        self._ask(current, tell_world=reply.action == "report")
        return None


def _read_error(path: pathlib.Path) -> TrainingError | None:
    try:
        return codec.loads(TrainingError, path.read_bytes())
    except (OSError, errors.MessageError):
        return None  # killed before it could write, or while it did
