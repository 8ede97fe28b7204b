# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The scaling decision of a job, before the available capacity is known; pure.

``planner.propose`` computes it once a tick. Everything later uses it: the second observe step reads
what the change needs, other jobs see what this one gains, and ``replica_scaling`` carries it out.
A job with parameter servers has rules of its own (``propose_ps``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rover_kf import errors
from rover_kf.api.jobs import ObservedJob, Pod
from rover_kf.api.records import ServerSetup
from rover_kf.api.samples import Throughput
from rover_kf.api.status import CoordinatorStatus
from rover_kf.job_kinds.registry import kind_of_job
from rover_kf.recommender import job_signature
from rover_kf.reconcilers import policy_source
from rover_kf.reconcilers.plan import CpuRaises, Observed
from rover_kf.reconcilers.status_annotation import JobStatus
from rover_kf.scaling import ps_decide
from rover_kf.scaling.decide import decide
from rover_kf.scaling.decision_input import ScalingProposal
from rover_kf.scaling.policy import OFF
from rover_kf.scaling.ps_decide import PsObservation, PsProposal
from rover_kf.scaling.scaling_state import JobObservation, ScalingState


def propose(observed: Observed, previous: ScalingState, now: float) -> ScalingProposal | None:
    """Return the proposal; None where the job does not train now, or nobody wants it scaled."""
    job, status, policy = observed.job, observed.status, observed.policy
    workers = "worker" in job.replicas and "ps" not in job.replicas  # with PS: ps_proposal
    if status is None or job.inactive or not workers or policy.mode == OFF:
        return None
    here = _observation(job, observed.pods, status, now)
    if previous.move is not None and not previous.move.changed_at:
        return ScalingProposal(here)
    return ScalingProposal(here, *decide(here, policy, previous, now=now))


def _observation(
    job: ObservedJob, pods: Sequence[Pod], status: CoordinatorStatus, now: float
) -> JobObservation:
    workers = job.replicas["worker"]
    lacking = [one for one in pods if one.replica_type == "worker" and one.unschedulable]
    trains = status.phase == "training" and status.nodes + len(lacking) == job.nodes
    # Windows are in the coordinator's clock, changes in ours: the two hosts' may differ.
    skew = now - status.now
    return JobObservation(
        replicas=workers,
        masters=job.nodes - workers,
        steady=status.phase == "training" and status.nodes == status.expected_nodes == job.nodes,
        windows=tuple(shift_window(window, skew) for window in status.windows),
        step=status.step,
        total_steps=status.total_steps,
        restart_seconds=status.restart_seconds,
        unschedulable=len(lacking) if trains else 0,
        # The newest: a pod that was made anew may find a node yet.
        unschedulable_seconds=now - max((one.unschedulable_since for one in lacking), default=now),
    )


def shift_window(window: Throughput, seconds: float) -> Throughput:
    """The window so many seconds later."""
    return dataclasses.replace(
        window, started_at=window.started_at + seconds, ended_at=window.ended_at + seconds
    )


KINDS = ("worker", "ps")


def is_scalable(observed: Observed, job_status: JobStatus) -> bool:
    """Whether another number of its workers or servers is allowed, or one is on trial."""
    job = observed.job
    if job.inactive or observed.policy.mode == OFF:
        return False
    setup = _current_setup(observed)
    changes = setup is not None and ps_decide.may_change(observed.policy, setup)
    tried = job_status.scaling.move is not None
    return set(KINDS) <= observed.standalone_types and (tried or changes)


def propose_ps(
    observed: Observed, job_status: JobStatus, now: float, *, cpu: CpuRaises
) -> PsProposal | None:
    """Return the proposal; None where nobody wants the job scaled, or a change is still to be made.

    ``cpu`` are the raises of its CPU limits before this tick.
    """
    move = job_status.scaling.move
    if not is_scalable(observed, job_status) or (move is not None and not move.changed_at):
        return None
    here = _ps_observation(observed, job_status, now, cpu)
    if here is None or (observed.status is None and move is None):
        return None
    return PsProposal(here, *ps_decide.decide(here, observed.policy, job_status.scaling, now=now))


def cycle_denial_reason(observed: Observed, job_status: JobStatus) -> str:
    """Why the job cannot be suspended and resumed for a change; empty if it can."""
    if why := policy_source.suspend_refusal(observed.job, job_status):
        return why
    if job_status.durable_step is None:
        return "no step of it is on storage (checkpoint.path)"
    return ""


def is_fully_running(observed: Observed) -> bool:
    """Whether the chief trains, and all workers and servers that the job asks for are there."""
    job, status = observed.job, observed.status
    if status is None or status.phase != "training":
        return False
    if not status.nodes == status.expected_nodes == job.nodes:
        return False
    there = [pod for pod in observed.pods if pod.phase == "Running" and not pod.deleting]
    counts = {kind: sum(pod.replica_type == kind for pod in there) for kind in KINDS}
    if any(counts[kind] != job.replicas[kind] for kind in KINDS):
        return False
    return not kind_of_job(job).is_dynamic(job.manifest) or _all_use_ledger(status, job.replicas)


def _all_use_ledger(status: CoordinatorStatus, replicas: Mapping[str, int]) -> bool:
    """Whether each worker takes records of the ledger that lends to them, if there is one."""
    if not status.data:
        return True
    wanted = {str(index + 1) for index in range(replicas["worker"])}  # 0 is the chief's
    return any(wanted <= {one.rank for one in data.workers} for data in status.data)


def _current_setup(observed: Observed) -> ServerSetup | None:
    try:
        return job_signature.server_setup(observed.job.manifest)
    except errors.InputError:  # told where its run is recorded
        return None


def _ps_observation(
    observed: Observed, job_status: JobStatus, now: float, cpu: CpuRaises
) -> PsObservation | None:
    setup, status, job = _current_setup(observed), observed.status, observed.job
    if setup is None:
        return None
    known = PsObservation(
        setup=setup,
        masters=job.nodes,
        steady=is_fully_running(observed),
        model=observed.ps_model,
        live=kind_of_job(job).is_dynamic(job.manifest),
        suspend_blocker=cycle_denial_reason(observed, job_status),
        raised_at=cpu.settled_at,
        cores_seconds=cpu.settling,
    )
    if status is None:
        return known
    skew = now - status.now
    known = dataclasses.replace(
        known,
        windows=tuple(shift_window(window, skew) for window in status.windows),
        restart_seconds=status.restart_seconds,
    )
    return _with_work_left(known, status)


def _with_work_left(observation: PsObservation, status: CoordinatorStatus) -> PsObservation:
    """By steps where they are known, else by the ledger of its records."""
    if status.total_steps:
        left = float(max(status.total_steps - status.step, 0))
        share = left / status.total_steps
        return dataclasses.replace(observation, steps_left=left, share_left=share)
    for data in status.data:
        whole = data.epochs * data.slots
        if whole and data.eta_seconds is not None:
            share = max(1.0 - (data.epoch * data.slots + data.done) / whole, 0.0)
            return dataclasses.replace(observation, seconds_left=data.eta_seconds, share_left=share)
    return observation
