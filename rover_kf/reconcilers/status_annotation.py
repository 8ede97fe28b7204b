# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a controller remembers of a job: one bounded JSON annotation on the job itself.

It is the only memory there is: a controller that was killed at any point reads it and goes on.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.faults.limit_raises import CpuLimitRaises, MemoryLimitRaises
from rover_kf.api.jobs import ObservedJob
from rover_kf.api.status import CoordinatorStatus
from rover_kf.scaling.scaling_state import ScalingState

LOG = logging.getLogger(__name__)

_NUMBERS = re.compile(r"[\d.]+")

MAX_BYTES = 4096
MAX_EMITTED = 24
MAX_REASON = 240
MAX_RECENT, MAX_RECENT_REASON = 6, 160
_PROGRESS = ("phase", "nodes", "step", "total_steps", "sealed_step", "durable_step", "restarts")
"""What is copied from the coordinator's status as it is."""
MAX_COMPARED_REASON = 80
"""Of reasons without their numbers: two that begin so are of one kind."""


@dataclasses.dataclass(frozen=True, slots=True)
class ExcludedNode:
    """A node that the job's pods keep away from."""

    node: str
    until: float
    """Unix seconds."""
    reason: str
    readmitted_at: float = 0.0
    """When it was taken back before its time, for want of room; 0: it was not."""


@dataclasses.dataclass(frozen=True, slots=True)
class LauncherState:
    """What the controller saw of the step that launched the job, by its own clock."""

    renewal: str = ""
    """The annotation's text when it was last seen to change."""
    renewed_at: float = 0.0
    """When that was; Unix seconds."""
    warned_at: float = 0.0
    """When its silence was told; 0: it was not."""
    expired_at: float = 0.0
    """When the job was suspended for it; 0: it was not."""


@dataclasses.dataclass(frozen=True, slots=True)
class JobStatus:
    """The annotation's content."""

    phase: str = ""
    """The coordinator's, as last heard."""
    nodes: int = 0
    """Members of the last round."""
    step: int = 0
    total_steps: int | None = None
    sealed_step: int | None = None
    durable_step: int | None = None
    samples_per_second: float = 0.0
    restarts: int = 0
    verdict: str = ""
    decision: ScaleDecision | None = None
    """The last one, also when it was to stay."""
    recent: tuple[ScaleDecision, ...] = ()
    """The last few that differ by more than numbers, oldest first; the history has all."""
    scaling: ScalingState = dataclasses.field(default_factory=ScalingState)
    memory: tuple[MemoryLimitRaises, ...] = ()
    """What was done about kills for memory, of replica types that had one."""
    cpu: tuple[CpuLimitRaises, ...] = ()
    """What was done about pods that the kernel holds back, of replica types that had one."""
    events_since: float = 0.0
    """When the coordinator began the story whose events were copied."""
    last_event: int = 0
    """Sequence of the last event of that story which was copied."""
    emitted: tuple[str, ...] = ()
    """Keys of what was told once and is not told again, newest last."""
    excluded_nodes: tuple[ExcludedNode, ...] = ()
    below_since: float = 0.0
    """Since when fewer pods can train than the fewest, as far as that matters; 0: they are not."""
    slow_replaced: int = 0
    """Pods that were replaced since the others waited for them."""
    suspended: str = ""
    """Why the controller suspended the job, and what to do; empty once it is resumed."""
    cycle_started_at: float = 0.0
    """When it suspended the job, to resume it once its pods are gone; 0: it did not."""
    launch: LauncherState = dataclasses.field(default_factory=LauncherState)
    written_at: float = 0.0

    def has_emitted(self, key: str) -> bool:
        """Whether that was told already."""
        return key in self.emitted

    def with_emitted(self, *keys: str) -> JobStatus:
        """The status with those marked as told."""
        new = [key for key in keys if key not in self.emitted]
        return dataclasses.replace(self, emitted=(*self.emitted, *new)[-MAX_EMITTED:])

    def with_decision(self, decision: ScaleDecision) -> JobStatus:
        """The status with a decision, which takes the place of one alike."""
        short = dataclasses.replace(decision, reason=decision.reason[:MAX_RECENT_REASON])
        kept = [one for one in self.recent if not _supersedes(one, short)]
        recent = (*kept, short)
        recent = recent if len(recent) <= MAX_RECENT else _drop_one(recent)
        return dataclasses.replace(self, decision=decision, recent=recent)

    def with_progress(self, status: CoordinatorStatus) -> JobStatus:
        """The status with what the coordinator says now."""
        copied = {name: getattr(status, name) for name in _PROGRESS}
        rate, verdict = round(status.samples_per_second, 2), status.verdict[:MAX_REASON]
        return dataclasses.replace(self, **copied, samples_per_second=rate, verdict=verdict)

    def needs_write(self, old: JobStatus, now: float, every: float) -> bool:
        """Whether it differs from what is written by more than progress, or that grew old.

        A write wakes every watcher of the job, ourselves too: progress alone is written once a
        window, anything that decides something at once.
        """
        if _essential(self) != _essential(old):
            return True
        since = dataclasses.replace(old, written_at=self.written_at)
        return since != self and now - old.written_at >= every


def read(job: ObservedJob) -> JobStatus:
    """What is remembered of the job; a fresh status if there is nothing readable."""
    text = job.annotations.get(names.STATUS_ANNOTATION)
    if not text:
        return JobStatus()
    try:
        return _parse(text)
    except errors.ProtocolError as error:
        # Edited by hand or by a newer version: what is in it is a cache but for moves under way.
        LOG.warning("%s: annotation %s is begun anew: %s", job.key, names.STATUS_ANNOTATION, error)
        return JobStatus()


@functools.lru_cache(maxsize=64)
def _parse(text: str) -> JobStatus:
    """A look reads the same text more than once."""
    return codec.loads(JobStatus, text)


def write(status: JobStatus) -> str:
    """The annotation's text, at most MAX_BYTES long."""
    if status.decision is not None:
        decision = dataclasses.replace(status.decision, reason=status.decision.reason[:MAX_REASON])
        status = dataclasses.replace(status, decision=decision)
    if (move := status.scaling.move) is not None:
        move = dataclasses.replace(move, reason=move.reason[:MAX_REASON])
        status = dataclasses.replace(status, scaling=dataclasses.replace(status.scaling, move=move))
    status = dataclasses.replace(status, suspended=status.suspended[:MAX_REASON])
    text = codec.dumps(status)
    while len(text) > MAX_BYTES and (status.recent or status.emitted):
        if status.recent:
            status = dataclasses.replace(status, recent=_drop_one(status.recent))
        else:
            status = dataclasses.replace(status, emitted=status.emitted[1:])
        text = codec.dumps(status)
    return text.decode()


def _supersedes(left: ScaleDecision, right: ScaleDecision) -> bool:
    """Whether the newer one says all that the older one does."""
    kind = (right.action, right.current_size, right.target_size)
    if (left.action, left.current_size, left.target_size) != kind:
        return left.action == right.action == "stay" and _has_same_text(left, right)
    if left.action == "stay":
        return _has_same_text(left, right)
    # The same advice, window by window, is one; what was done is told each time.
    return left.at == right.at or not (left.applied or right.applied)


def _has_same_text(left: ScaleDecision, right: ScaleDecision) -> bool:
    # What is left of a reason that was cut off ends where its numbers let it.
    first, second = (_NUMBERS.sub("#", each.reason)[:MAX_COMPARED_REASON] for each in (left, right))
    return first == second


def _drop_one(recent: tuple[ScaleDecision, ...]) -> tuple[ScaleDecision, ...]:
    """Without one of them: the oldest to stay, for what was changed is what people ask about."""
    stays = (i for i, one in enumerate(recent[:-1]) if one.action == "stay")
    gone = next(stays, 0)
    return (*recent[:gone], *recent[gone + 1 :])


def _essential(status: JobStatus) -> JobStatus:
    """The part whose loss would make a controller act twice or people see an old state."""
    decision = None if status.decision is None else _summarize(status.decision)
    scaling = dataclasses.replace(status.scaling, seen_until=0.0)
    return dataclasses.replace(
        status,
        step=0,
        sealed_step=None,
        durable_step=None,
        samples_per_second=0.0,
        decision=decision,
        recent=tuple(filter(None, map(_summarize, status.recent))),
        scaling=scaling,
        written_at=0.0,
    )


def _summarize(decision: ScaleDecision) -> ScaleDecision | None:
    """What of a decision is more than progress; of advice what it comes to."""
    if decision.action == "stay":
        return None
    if decision.applied:
        return decision
    before, after = decision.current_size, decision.target_size
    found = ScaleDecision(0.0, decision.action, before[0], after[0], "", 0.0, 0.0, 0.0)
    return dataclasses.replace(found, servers=before[1], target_servers=after[1])
