# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ends of launchers that a restart policy of OnFailure or Always would only repeat; pure.

The kubelet starts such a container again in its pod whatever its exit code means. After the verdict
that the job has failed it would do so for ever; and a container that said that another pod has to
take its place would come back in the same one.
"""

from __future__ import annotations

from rover_kf.api import names
from rover_kf.api.jobs import Event, Pod
from rover_kf.elastic.rendezvous.effects import truncate
from rover_kf.job_kinds.registry import kind_of_job
from rover_kf.reconcilers.plan import DeletePod, EmitJobEvent, Observed, ReconcilePlan

_IN_PLACE = ("OnFailure", "Always")


def apply(plan: ReconcilePlan, observed: Observed, now: float) -> ReconcilePlan:
    """The plan with the job ended after its verdict, or a pod replaced that cannot go on."""
    job = observed.job
    kinds = _restarted_in_place(observed)
    if not kinds or job.inactive:
        return plan
    if observed.status is not None and observed.status.phase == "failed":
        return _fail_job(plan, observed, observed.status.verdict, now)
    for pod in observed.pods:
        known = plan.status.has_emitted(f"unfit:{pod.uid[:8]}")
        if pod.replica_type in kinds and _must_be_replaced(observed, pod) and not known:
            return _replace_pod(plan, observed, pod, now)
    return plan


def _restarted_in_place(observed: Observed) -> frozenset[str]:
    """Replica types whose containers the kubelet starts again whatever their exit code."""
    job_kind = kind_of_job(observed.job)
    if not job_kind.elastic:
        return frozenset()
    return frozenset(
        one.kind
        for one in job_kind.replicas(observed.job.manifest)
        if (one.spec.get("restartPolicy") or job_kind.restart_policy) in _IN_PLACE
    )


def _fail_job(plan: ReconcilePlan, observed: Observed, verdict: str, now: float) -> ReconcilePlan:
    policy = kind_of_job(observed.job).run_policy(observed.job.manifest)
    if policy.get("backoffLimit") == 0:
        return plan
    message = (
        "runPolicy.backoffLimit is set to 0, so that the Training Operator ends the job: restarts "
        f"cannot help any more ({truncate(verdict)})"
    )
    event = Event(names.EVENT_RESTART_BUDGET_EXHAUSTED, message, warning=True, at=now)
    return plan.patch(plan.status, event, {"runPolicy": {"backoffLimit": 0}})


def _must_be_replaced(observed: Observed, pod: Pod) -> bool:
    name = kind_of_job(observed.job).container
    trainer = next((one for one in pod.containers if one.name == name), None)
    ended = trainer is not None and trainer.exit_code == names.EXIT_RETRY
    return ended and pod.phase == "Running" and not pod.deleting


def _replace_pod(plan: ReconcilePlan, observed: Observed, unfit: Pod, now: float) -> ReconcilePlan:
    """One at a time: each pod may hold what the others need to go on."""
    others = [pod for pod in observed.pods if pod.uid != unfit.uid]
    stand = all(pod.phase == "Running" and not pod.deleting for pod in others)
    if not stand or len(observed.pods) < observed.job.nodes:
        return plan
    message = (
        f"{unfit.name} is replaced: its launcher ended with {names.EXIT_RETRY}, training cannot go "
        "on in this pod, and the restart policy only starts the same container again"
    )
    event = Event(names.EVENT_POD_LOST, message, warning=True, at=now)
    memory = plan.status.with_emitted(f"unfit:{unfit.uid[:8]}")
    return plan.with_effects(EmitJobEvent(event), DeletePod(unfit), status=memory)
