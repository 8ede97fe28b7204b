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
from rover_kf.elastic.rendezvous.event_text import shortened
from rover_kf.injection.adapters import PYTORCH
from rover_kf.reconcilers.plan import GiveUp, Observed, Plan, Replace, Tell

_IN_PLACE = ("OnFailure", "Always")


def extend(made: Plan, seen: Observed, now: float) -> Plan:
    """The plan with the job ended after its verdict, or a pod replaced that cannot go on."""
    job = seen.job
    kinds = _restarted_in_place(seen)
    if not kinds or job.finished or job.suspended or job.deleting:
        return made
    if seen.status is not None and seen.status.phase == "failed":
        return _give_up(made, seen, seen.status.verdict, now)
    for pod in seen.pods:
        key = f"unfit:{pod.uid[:8]}"
        if pod.replica_type in kinds and _is_unfit(pod) and not made.status.has_told(key):
            return _replace(made, seen, pod, now)
    return made


def _restarted_in_place(seen: Observed) -> frozenset[str]:
    """Replica types whose containers the kubelet starts again whatever their exit code."""
    if seen.job.key.kind != names.PYTORCHJOB:
        return frozenset()
    replicas = PYTORCH.replicas(seen.job.manifest)
    return frozenset(
        one.kind for one in replicas if (one.spec.get("restartPolicy") or "OnFailure") in _IN_PLACE
    )


def _give_up(made: Plan, seen: Observed, verdict: str, now: float) -> Plan:
    policy = seen.job.manifest["spec"].get("runPolicy") or {}
    if policy.get("backoffLimit") == 0:
        return made
    message = (
        "runPolicy.backoffLimit is set to 0, so that the Training Operator ends the job: restarts "
        f"cannot help any more ({shortened(verdict)})"
    )
    event = Event(names.EVENT_RESTART_BUDGET_EXHAUSTED, message, warning=True, at=now)
    return made.then(GiveUp(made.status), Tell(event), status=made.status)


def _is_unfit(pod: Pod) -> bool:
    trainer = next((one for one in pod.containers if one.name == PYTORCH.container), None)
    ended = trainer is not None and trainer.exit_code == names.EXIT_RETRY
    return ended and pod.phase == "Running" and not pod.deleting


def _replace(made: Plan, seen: Observed, unfit: Pod, now: float) -> Plan:
    """One at a time: each pod may hold what the others need to go on."""
    others = [pod for pod in seen.pods if pod.uid != unfit.uid]
    stand = all(pod.phase == "Running" and not pod.deleting for pod in others)
    if not stand or len(seen.pods) < seen.job.nodes:
        return made
    message = (
        f"{unfit.name} is replaced: its launcher ended with {names.EXIT_RETRY}, training cannot go "
        "on in this pod, and the restart policy only starts the same container again"
    )
    event = Event(names.EVENT_POD_LOST, message, warning=True, at=now)
    memory = made.status.with_told(f"unfit:{unfit.uid[:8]}")
    return made.then(Tell(event), Replace(unfit), status=memory)
