# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The registry of Event reasons: each with its type, its meaning and the user's action.

docs/reference/events.md is generated from it. ``names.EVENT_*`` repeat the reasons as plain text,
so that a job's processes do not load this table.
"""

from __future__ import annotations

import dataclasses
import re

NORMAL, WARNING, EITHER = "Normal", "Warning", "Normal or Warning"

_ROWS = """
# admission
RoverInjected | Normal or Warning | The webhook added the runtime, the sidecar and the arena to the
    job's pods. A Warning names a field of the job that it changed.
    -> Read a Warning's message; otherwise nothing.
NotInjected | Warning | The job has the label, but the webhook did not patch it; it runs unchanged.
    -> Delete the job and create it again while the webhook is available.
CommandNotRewritten | Warning | The launcher cannot replace the trainer's command. The job has
    checkpoints, but neither recovery nor scaling.
    -> Start the script with `python` or `torchrun`; the message gives the reason.
# rounds and members
WorldFormed | Normal | A round started; the message gives its number and size.
Recovered | Normal | Every rank steps again after a failure or a change; the message gives the
    time.
MemberLost | Warning | A pod did not contact the coordinator within its lease, and the round ended.
    -> If it repeats, check the pod's node and network.
MemberLeft | Normal | A pod left the round as planned.
WorkerJoined | Normal | A TFJob's worker started to lease records from the chief.
WorkerLeft | Normal | A TFJob's worker no longer leases records; the others process its share.
PodSkipped | Normal | The round does not wait for a pod that cannot start; the pod joins when it
    does.
    -> The message gives the reason; free capacity or fix the image.
PodExcluded | Warning | A pod failed repeatedly while the others did not. It stays out of rounds
    for some time.
    -> Check the pod's node and its logs.
CoordinatorPodPrioritized | Warning | A worker pod was deleted so that the coordinator's pod can be
    scheduled.
    -> Free capacity; the job grows again when both pods fit.
# failures and restarts
TrainingProcessFailed | Warning | A training process or a container ended; the message gives the
    failure kind and the cause.
    -> Look up the kind in [failures](../failures.md); fix the script if it is the cause.
RestartDelayed | Warning | The next restart waits, because failures follow each other.
    -> Fix the cause that the previous Event names; `failures.max-backoff` bounds the wait.
RestartBudgetExhausted | Warning | Restarts cannot help any more. `runPolicy.backoffLimit` is 0,
    and the operator ends the job.
    -> Fix the cause in the message, then create the job again.
TrainingFailed | Warning | The job failed; the message gives the verdict.
    -> Fix the cause; a new job resumes from the last durable checkpoint.
TrainingFinished | Normal | All training processes succeeded.
PodLost | Warning | A pod was lost by eviction, preemption or the loss of its node, or is replaced.
    -> Nothing for one pod; check the node if it repeats.
PodNotRemoved | Warning | The controller may not delete a pod on a silent node.
    -> Grant the right in the message, or delete the pod.
PodUnschedulable | Warning | The scheduler finds no node for a pod; the message gives its words.
    -> Free capacity, lower the requests, or set `failures.suspend-after`.
PodPending | Warning | A pod has a node, but no container has started for some time.
    -> Run `kubectl describe pod`: a volume, a Secret or a ConfigMap may be missing.
Hang | Warning | No rank completed a step within the threshold; the message gives the stacks'
    difference.
    -> Read where the missing ranks stand; see [hangs](../hangs.md).
HangResolved | Normal | Steps continue after a hang.
Straggler | Warning | The other ranks wait for a slow rank.
    -> Check its node, or set `straggler.action: replace`.
StragglerReplaced | Warning | The pod of a slow rank is recreated on another node.
    -> Check the node that it left.
# nodes
Preflight | Normal or Warning | The node check ended; the message gives its measurements. A Warning
    means a bad pod.
    -> On a Warning, read the `NodeCheckFailed` Events.
NodeCheckFailed | Warning | The node check found a pod slow, faulty or unclear.
    -> Check the node, or set `preflight.mode: exclude`.
NodeAvoided | Warning | The job keeps away from a node, and its pods there are recreated.
    -> Check the node; `failures.node-avoid` sets the period.
NodeAvoidanceEnded | Warning | Avoided nodes are permitted again, since the job lacks capacity for
    its minimum.
    -> Add capacity, or repair the nodes.
NodeCordoned | Warning | The controller cordoned a node after a hardware failure or a failed check.
    -> Repair the node, then run `kubectl uncordon`.
NodeNotCordoned | Warning | The controller may not cordon the node.
    -> Apply the component `cordon` of the manifests, or cordon it by hand.
# checkpoints
CheckpointRestored | Normal | A rank restored its state; the message gives the step and the source.
CheckpointDurable | Normal | A checkpoint is committed to storage.
CheckpointWarning | Warning | A checkpoint could not be saved, persisted, copied or read; the
    message gives the cause.
    -> Fix the cause; see [where checkpoints are kept](../checkpoint-storage.md).
ReplicaMismatch | Warning | Ranks hold different bits of a tensor that must be equal.
    -> Check the named pods' hardware; restart from the last equal step.
DataShardQuarantined | Warning | A part of a dataset failed repeatedly and is not read any more.
    -> Repair the records that the message names.
# sizes
ScaleDecision | Normal | The autoscaler chose a number of replicas; the message gives the reason.
    -> In mode `recommend`, apply it if you agree.
Scaled | Normal | The number of replicas changed.
ScaleVerified | Normal | The measured throughput confirms the new size.
ScaleRolledBack | Warning | The new size did not pay, and the job returns to the previous one.
    -> Nothing; this is expected on a busy cluster.
ScaleRefused | Normal or Warning | The replicas stay unchanged: a quota, a node, another autoscaler
    or the policy prevents it.
    -> Resolve the reason in the message, or set `scaling.max`.
StatusRejected | Warning | The controller does not use the coordinator's answer: it is no status, or
    a value is out of bounds.
    -> Check which program listens on port 7411 of the job's first pod.
MemoryRaised | Normal | The memory limit of a replica type was raised.
    -> State the new limit in the manifest.
MemoryNotRaised | Warning | Memory ran short, but the limit stays; the message gives the bound.
    -> Set `memory.max`, or lower the script's memory use.
CpuRaised | Normal | The CPU limit of a replica type was raised.
    -> State the new limit in the manifest.
CpuNotRaised | Warning | Pods use up their CPU limit, but it stays; the message gives the bound.
    -> Set `cpu.max`, or free capacity.
ServerCpuThrottled | Warning | Parameter servers use up their CPU limit, and steps wait for them.
    -> Set `scaling.mode: auto` with `cpu.max`, or raise the limit.
WorkerCpuThrottled | Warning | Workers use up their CPU limit, and steps wait for them.
    -> Set `scaling.mode: auto` with `cpu.max`, or raise the limit.
CpuOverRequested | Normal | Pods request clearly more CPU than they use.
    -> Lower the request in the manifest for the next run.
# suspension and launchers
JobSuspended | Normal or Warning | The job is suspended; its pods end, and its state is on storage.
    -> Read the message: some suspensions end automatically, others by `rover-kf resume`.
NotSuspended | Warning | The job should be suspended, but would lose state or has another manager.
    -> Set `checkpoint.path`, or suspend it through its manager.
JobResumed | Normal or Warning | The job was resumed from storage. A Warning names a change that it
    resumed without.
    -> Read a Warning's message; otherwise nothing.
LauncherSilent | Warning | The launching pipeline step has not renewed its lease for some time.
    -> Check the pipeline's run; the lease expires soon.
LaunchLeaseExpired | Warning | The launch lease expired, and `launch.on-lease-expired` was applied.
    -> Restart the step, which adopts the job.
NotDeleted | Warning | The controller may not delete the job and suspended it.
    -> Apply the component `delete-lost` of the manifests, or delete it by hand.
# services
CertificateInvalid | Warning | The sidecars' new certificate is invalid; they keep the previous
    one.
    -> Repair the Secret that `tls.secret` names.
RunRecorded | Normal | The run is in the history.
HistoryUnavailable | Warning | The history database is unavailable; training does not depend on it.
    -> Check the database and the controller's log.
"""
"""Reason, type and meaning; behind an arrow the user's action, where there is one."""


@dataclasses.dataclass(frozen=True, slots=True)
class EventReason:
    """A reason of Events that rover-kf writes for a job."""

    reason: str
    """CamelCase, as Kubernetes shows it."""
    type: str
    """``NORMAL``, ``WARNING``, or ``EITHER`` where it depends on the case."""
    meaning: str
    action: str


def _parse_row(row: str) -> EventReason:
    facts, _, action = " ".join(row.split()).partition(" -> ")
    reason, kind, meaning = facts.split(" | ")
    return EventReason(reason, kind, meaning, action or "Nothing.")


REASONS = tuple(
    _parse_row(row) for row in re.split(r"\n(?!    )", _ROWS.strip()) if not row.startswith("#")
)
