# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose launcher, a step of a pipeline, is not heard of any more; pure.

A stopped run's SIGTERM may not reach its step, and the step's pod may be lost: the job would train
on for nobody. So the step counts an annotation on while it waits. Only whether the count has
changed since the last look matters, by the controller's own clock: no two clocks are compared. The
silence is told when a third of the lease is left, and nothing is done before that third has passed:
who was away together with the controller, since the API server was, has time to count on.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.plan import (
    DeleteJob,
    EmitJobEvent,
    Observed,
    PatchJob,
    ReconcilePlan,
    suspend_spec,
)
from rover_kf.reconcilers.status_annotation import LauncherState

WARN_FRACTION = 2 / 3
"""Of a lease, when the silence is told."""


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with the job suspended or deleted if its launcher was silent for the lease."""
    job, known = observed.job, plan.status.launch
    if not _is_active(observed):
        return plan.with_status(launch=LauncherState())
    if job.suspended:
        # Whoever resumes it has the whole lease.
        plan = plan.with_status(launch=LauncherState(expired_at=known.expired_at))
        deletes = known.expired_at and observed.policy.sections.launch.on_lease_expired == "delete"
        return plan.with_effects(DeleteJob()) if deletes else plan
    renewal = job.annotations[names.LAUNCH_RENEWAL_ANNOTATION]
    if renewal != known.renewal:
        return plan.with_status(launch=LauncherState(renewal, renewed_at=now))
    if now < known.renewed_at + observed.policy.sections.launch.lease * WARN_FRACTION:
        return plan.with_status(launch=known)
    if not known.warned_at:
        known = dataclasses.replace(known, warned_at=now)
        return _warn(plan.with_status(launch=known), observed, now)
    plan = plan.with_status(launch=known)
    return plan if now < _expires_at(known, observed) else _expire(plan, observed, now)


def delay(plan: ReconcilePlan, observed: Observed, now: float) -> float | None:
    """Seconds until the launcher's silence is to be told or acted upon; None if it is not."""
    known = plan.status.launch
    if not known.renewal or not _is_active(observed):
        return None
    warning = known.renewed_at + observed.policy.sections.launch.lease * WARN_FRACTION
    return max((_expires_at(known, observed) if known.warned_at else warning) - now, 0.0)


def _is_active(observed: Observed) -> bool:
    job, policy = observed.job, observed.policy
    kept = not policy.sections.launch.lease or policy.sections.launch.on_lease_expired == "keep"
    launched = job.annotations.get(names.LAUNCH_RENEWAL_ANNOTATION)
    return bool(launched) and not (kept or job.finished or job.deleting)


def _expires_at(launcher: LauncherState, observed: Observed) -> float:
    lease = observed.policy.sections.launch.lease
    return max(launcher.renewed_at + lease, launcher.warned_at + lease * (1 - WARN_FRACTION))


def _warn(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    known = plan.status.launch
    message = (
        f"{_describe_launcher(known)} has been silent for {now - known.renewed_at:.0f} s; in "
        f"{_expires_at(known, observed) - now:.0f} s launch.on-lease-expired "
        f"({observed.policy.sections.launch.on_lease_expired}) is "
        "done, unless it, or a step that takes its place, counts on"
    )
    event = Event(names.EVENT_LAUNCHER_SILENT, message, warning=True, at=now)
    return plan.with_effects(EmitJobEvent(event))


def _expire(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    known = plan.status.launch
    silence = (
        f"{_describe_launcher(known)} was silent for {now - known.renewed_at:.0f} s (launch.lease)"
    )
    deletes = observed.policy.sections.launch.on_lease_expired == "delete"
    if why := policy_source.external_manager_reason(observed.job):
        if deletes:
            plan = _emit_once(plan, names.EVENT_LAUNCH_LEASE_EXPIRED, silence, now)
            return plan.with_effects(DeleteJob())
        message = f"{silence}, and yet the job goes on: {why}"
        return _emit_once(plan, names.EVENT_NOT_SUSPENDED, message, now)
    reason = (
        f"suspended: {silence}; a step that takes its place resumes the job, as does "
        "runPolicy.suspend: false"
    )
    ended = dataclasses.replace(known, expired_at=now)
    memory = dataclasses.replace(plan.status, launch=ended, suspended=reason, below_since=0.0)
    plan = plan.with_effects(PatchJob(memory, suspend_spec(observed.job)), status=memory)
    plan = _emit_once(plan, names.EVENT_LAUNCH_LEASE_EXPIRED, reason, now)
    return plan.with_effects(DeleteJob()) if deletes else plan


def _emit_once(plan: ReconcilePlan, name: str, message: str, now: float) -> ReconcilePlan:
    key = f"silent:{plan.status.launch.renewed_at:.0f}"
    return plan.emit_once(key, Event(name, message, warning=True, at=now))


def _describe_launcher(launcher: LauncherState) -> str:
    return f"the launching step {launcher.renewal.partition(' ')[0]}"
