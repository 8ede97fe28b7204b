# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job's annotations as the policy that the watcher follows, and what another manager owns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rover_kf.api import names
from rover_kf.api.jobs import ObservedJob
from rover_kf.injection import sizing
from rover_kf.injection.policy.rover_policy import RoverPolicy
from rover_kf.job_kinds import registry
from rover_kf.job_kinds.job_spec import JobSpec
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling.policy import AUTO, AutoscalingPolicy

EMBEDDED_RESTART_SECONDS = 1.0
"""On one machine a newcomer warms up while the others train; the switch takes well below that."""

PolicyOf = Callable[[ObservedJob], AutoscalingPolicy]

KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
OPERATOR = "kubeflow.org/training-operator"


def policy_from_job(job: ObservedJob, *, restart_prior_seconds: float = 60.0) -> AutoscalingPolicy:
    """Return the policy of a job; a change costs the prior until the job has shown its own cost.

    An annotation that was edited into something that is not allowed is a PolicyError.
    """
    policy = RoverPolicy.from_annotations(job.annotations, source=str(job.key))
    low, high = sizing.worker_bounds(JobSpec.from_observed(job), policy)
    deadline = policy.scaling.deadline
    return AutoscalingPolicy(
        mode=policy.scaling.mode,
        min=low,
        max=high,
        sizes=policy.scaling.sizes,
        max_servers=policy.scaling.ps_max or 0,
        window_seconds=policy.scaling.window,
        cooldown_seconds=policy.scaling.cooldown,
        restart_prior_seconds=restart_prior_seconds,
        value_of_time=policy.scaling.value_of_time,
        deadline=None if deadline is None else job.created_at + deadline,
        weight=policy.scaling.weight,
        sections=policy,
    )


def policy_from_embedded_job(job: ObservedJob) -> AutoscalingPolicy:
    """Return the policy of a job on this machine; raises as ``policy_from_job``."""
    policy = policy_from_job(job, restart_prior_seconds=EMBEDDED_RESTART_SECONDS)
    # There is no other machine.
    failures = dataclasses.replace(policy.sections.failures, node_avoid=0.0)
    sections = dataclasses.replace(policy.sections, failures=failures)
    return dataclasses.replace(policy, sections=sections)


def refusal(job: ObservedJob) -> str:
    """Why the job's replicas are not ours to change; empty if they are."""
    job_kind = registry.kind_of_job(job)
    elastic = job_kind.elastic_policy(job.manifest)
    if "ps" in job.replicas:
        return external_manager_reason(job)
    if not job_kind.elastic:
        return f"a {job.key.kind} fails when workers go, unless it has PS: its size stays"
    if elastic.get("metrics"):
        return (
            "elasticPolicy.metrics makes an HPA that owns the replicas; remove it to let us scale"
        )
    if why := external_manager_reason(job):
        return why
    if elastic and job.replicas.get("master"):
        return "it has both a Master and an elasticPolicy, whose sizes disagree; remove one of them"
    return ""


def external_manager_reason(job: ObservedJob) -> str:
    """Why neither its size nor whether it runs is ours to change; empty if they are."""
    manager = registry.kind_of_job(job).run_policy(job.manifest).get("managedBy") or OPERATOR
    if KUEUE_LABEL in job.labels:
        return f"label {KUEUE_LABEL}: Kueue admitted it with this size; scaling would bypass quota"
    if manager != OPERATOR:
        return f"runPolicy.managedBy is {manager}; only {OPERATOR} acts on replicas here"
    return ""


def suspend_refusal(job: ObservedJob, memory: JobStatus) -> str:
    """Why the job is not ours to suspend, or would lose what it has done; empty if neither."""
    if why := external_manager_reason(job):
        return why
    if memory.sealed_step and memory.durable_step is None:
        return (
            f"step {memory.sealed_step} is in its pods' memory alone; with checkpoint.path on "
            "storage it could be suspended"
        )
    return ""


def cpu_raise_denial(policy: AutoscalingPolicy) -> str:
    """Why the policy lets no CPU limit be raised; empty where it does."""
    if policy.mode == AUTO and not policy.max_cpu:
        return f"annotation {names.PREFIX}cpu.max is not there: set the most that it may be, as 8"
    return "" if policy.mode == AUTO else "advice"
