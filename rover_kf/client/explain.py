# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Why a job has its size: decisions, what they reckoned with, and what came of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from rover_kf import errors
from rover_kf.api.decisions import ScaleDecision
from rover_kf.api.faults.limit_raises import LimitRaises
from rover_kf.api.jobs import JobKey, ObservedJob
from rover_kf.client import results
from rover_kf.cluster.protocol import Cluster
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.injection.limits import manifest_memory
from rover_kf.injection.limits.manifest_cpu import CPU
from rover_kf.injection.limits.raised_limit import LimitRaise
from rover_kf.recommender import job_signature
from rover_kf.recommender.parameter_servers import SetupForecast, fit_model, forecast_setups
from rover_kf.reconcilers import policy_source, status_annotation
from rover_kf.scaling.policy import AUTO
from rover_kf.scaling.ps_decide import allowed_text
from rover_kf.system.html_tables import NotebookTable

HISTORY, ANNOTATION = "history", "annotation"


@dataclasses.dataclass(frozen=True, slots=True)
class DecisionOutcome:
    """A decision and what came of it."""

    decision: ScaleDecision
    measured_then: float = 0.0
    """Samples per second at the target, as later decisions measured; 0: not measured (yet)."""

    @property
    def gain(self) -> float:
        """Measured throughput afterwards over the one before; 0 if it was not measured."""
        before = self.decision.measured
        return self.measured_then / before if before else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class RaisedLimit:
    """A limit of memory (bytes) or CPU (thousandths of a core) that the owner did not state."""

    replicas: str
    """Their type, as in the job's spec."""
    stated: int
    """By the owner."""
    limit: int
    """Now."""
    raises: int
    raised_at: float
    """When it was raised last; Unix seconds."""
    reason: str
    """What for; empty where a job began with the limit of the run before."""


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation(NotebookTable):
    """A job's size and how it came about."""

    job: str
    replicas: int
    """Worker replicas that it asks for."""
    mode: str
    """``off``, ``recommend`` or ``auto``."""
    allowed: str
    """Sizes that its policy allows, with parameter servers where it may have more of them."""
    unmanaged_reason: str
    """Why its size is not changed by rover-kf, as far as the job says; empty if it is."""
    pending_change: str
    """The change that is being made or verified; empty if there is none."""
    banned: tuple[tuple[int, float], ...]
    """Sizes that disappointed, and until when they are not tried (Unix seconds)."""
    banned_setups: tuple[tuple[int, int, float], ...]
    """The same of workers and parameter servers together."""
    memory: tuple[RaisedLimit, ...]
    """Of replica types whose memory limit was raised."""
    cpu: tuple[RaisedLimit, ...]
    """The same of their CPU limit."""
    servers: tuple[SetupForecast, ...]
    """Forecasts for a TFJob's workers and parameter servers, by the setups of its runs."""
    decisions: tuple[DecisionOutcome, ...]
    """Oldest first."""
    source: str
    """Of the decisions: ``history`` has all, the job's own ``annotation`` the last few."""

    def _html_title(self) -> str:
        parts = [f"{self.job}: {self.replicas} replicas, mode {self.mode}"]
        parts += [f"allowed {self.allowed}"] if self.allowed else []
        return "; ".join([*parts, *filter(None, (self.unmanaged_reason, self.pending_change))])

    def _html_header(self) -> Sequence[str]:
        return ("decision", "samples/s", "predicted", "measured then", "why")

    def _html_rows(self) -> Iterable[Sequence[object]]:
        for one in self.decisions:
            said = one.decision
            stays = said.action == "stay"
            done = "" if stays or said.applied else " (not done)"
            what = f"stay at {said.change}" if stays else said.change.replace("->", "to") + done
            then = f"{one.measured_then:.0f}" if one.measured_then else None
            yield what, f"{said.measured:.0f}", f"{said.predicted:.0f}", then, said.reason


def explain(cluster: Cluster, history: HistoryStore, key: JobKey) -> Explanation:
    """Explain a job's size; decisions that the history lacks come from the job's annotation."""
    job = cluster.get_job(key)
    memory = status_annotation.read(job)
    record = results.run_of(history, job)
    decisions, source = record.decisions if record is not None else (), HISTORY
    newest = decisions[-1].at if decisions else 0.0
    if memory.recent and newest < memory.recent[-1].at:
        decisions, source = memory.recent, ANNOTATION
    mode, allowed, alone = _policy(job)
    move = memory.scaling.move
    state = "" if move is None else "verified" if move.changed_at else "made"
    if move is None:
        under_way = ""
    elif move.servers:
        under_way = f"{move.change} is being {state}"
    else:
        under_way = f"{move.origin} -> {move.target} is being {state}"
    return Explanation(
        job=str(job.key),
        replicas=job.replicas.get("worker", 0),
        mode=mode,
        allowed=allowed,
        unmanaged_reason=alone,
        pending_change=under_way,
        banned=tuple((ban.size, ban.until) for ban in memory.scaling.bans if not ban.servers),
        banned_setups=tuple(
            (ban.size, ban.servers, ban.until) for ban in memory.scaling.bans if ban.servers
        ),
        memory=_raised_limits(manifest_memory.raised(job.manifest), memory.memory),
        cpu=_raised_limits(CPU.raised(job.manifest), memory.cpu),
        servers=_ps_forecasts(history, job),
        decisions=with_effects(decisions),
        source=source,
    )


def with_effects(decisions: tuple[ScaleDecision, ...]) -> tuple[DecisionOutcome, ...]:
    """Each decision with the throughput that was measured at its target before the next change."""
    found = []
    for index, one in enumerate(decisions):
        measured = 0.0
        for later in decisions[index + 1 :] if one.action != "stay" and one.applied else ():
            if later.current_size == one.target_size and later.measured:
                measured = later.measured
            if later.applied:
                break
        found.append(DecisionOutcome(one, measured))
    return tuple(found)


def _raised_limits(
    limits: Mapping[str, LimitRaise], raises: Iterable[LimitRaises]
) -> tuple[RaisedLimit, ...]:
    """Limits that differ from those stated, with what the controller wrote of its raises."""
    known = {one.replica_type: one for one in raises}
    found = []
    for replicas, one in limits.items():
        done = known.get(replicas.lower())
        told = (done.raises, done.raised_at, done.reason) if done else (0, 0.0, "")
        found.append(RaisedLimit(replicas, one.stated, one.limit, *told))
    return tuple(found)


def _ps_forecasts(history: HistoryStore, job: ObservedJob) -> tuple[SetupForecast, ...]:
    try:
        read = job_signature.from_manifest(job.manifest, source=str(job.key))
        if read.setup is None:
            return ()
        found = history.similar(read.signature)
    except (errors.HistoryUnavailable, errors.InputError):  # nothing is known of its servers
        return ()
    law = fit_model(run for run in found if run.signature.command == read.signature.command)
    return () if law is None else forecast_setups(law, read.setup)


def _policy(job: ObservedJob) -> tuple[str, str, str]:
    try:
        policy = policy_source.policy_from_job(job)
    except errors.InputError as error:
        return "off", "", f"its annotations are wrong: {error}"
    why = policy_source.refusal(job) or ("it is suspended" if job.suspended else "")
    if policy.mode != AUTO:
        why = f"scaling.mode is {policy.mode}"
    return policy.mode, allowed_text(policy, job.replicas.get("ps", 0)), why
