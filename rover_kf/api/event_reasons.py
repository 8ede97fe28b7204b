# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The registry of Event reasons: each with its type, its meaning and the user's action.

docs/reference/events.md is generated from it, and ``names.EVENT_*`` are its reasons.
"""

from __future__ import annotations

import dataclasses

NORMAL, WARNING, EITHER = "Normal", "Warning", "Normal or Warning"
NOTHING = "Nothing."


@dataclasses.dataclass(frozen=True, slots=True)
class EventReason:
    """A reason of Events that rover-kf writes for a job."""

    reason: str
    """CamelCase, as Kubernetes shows it."""
    type: str
    """``NORMAL``, ``WARNING``, or ``EITHER`` where it depends on the case."""
    meaning: str
    action: str


# -- admission -------------------------------------------------------------------------------------

INJECTED = EventReason(
    "RoverInjected",
    EITHER,
    "The webhook added the runtime, the sidecar and the arena to the job's pods. "
    "A Warning names a field of the job that it changed.",
    "Read a Warning's message; otherwise nothing.",
)
NOT_INJECTED = EventReason(
    "NotInjected",
    WARNING,
    "The job has the label, but the webhook did not patch it; it runs unchanged.",
    "Delete the job and create it again while the webhook is available.",
)
NOT_REWRITTEN = EventReason(
    "CommandNotRewritten",
    WARNING,
    "The launcher cannot replace the trainer's command. "
    "The job has checkpoints, but neither recovery nor scaling.",
    "Start the script with `python` or `torchrun`; the message gives the reason.",
)

# -- rounds and members ----------------------------------------------------------------------------

WORLD_FORMED = EventReason(
    "WorldFormed", NORMAL, "A round started; the message gives its number and size.", NOTHING
)
RECOVERED = EventReason(
    "Recovered",
    NORMAL,
    "Every rank steps again after a failure or a change; the message gives the time.",
    NOTHING,
)
MEMBER_LOST = EventReason(
    "MemberLost",
    WARNING,
    "A pod did not contact the coordinator within its lease, and the round ended.",
    "If it repeats, check the pod's node and network.",
)
MEMBER_LEFT = EventReason("MemberLeft", NORMAL, "A pod left the round as planned.", NOTHING)
WORKER_JOINED = EventReason(
    "WorkerJoined", NORMAL, "A TFJob's worker started to lease records from the chief.", NOTHING
)
WORKER_LEFT = EventReason(
    "WorkerLeft",
    NORMAL,
    "A TFJob's worker no longer leases records; the others process its share.",
    NOTHING,
)
POD_SKIPPED = EventReason(
    "PodSkipped",
    NORMAL,
    "The round does not wait for a pod that cannot start; the pod joins when it does.",
    "The message gives the reason; free capacity or fix the image.",
)
POD_EXCLUDED = EventReason(
    "PodExcluded",
    WARNING,
    "A pod failed repeatedly while the others did not. It stays out of rounds for some time.",
    "Check the pod's node and its logs.",
)
COORDINATOR_POD_PRIORITIZED = EventReason(
    "CoordinatorPodPrioritized",
    WARNING,
    "A worker pod was deleted so that the coordinator's pod can be scheduled.",
    "Free capacity; the job grows again when both pods fit.",
)

# -- failures and restarts -------------------------------------------------------------------------

PROCESS_FAILED = EventReason(
    "TrainingProcessFailed",
    WARNING,
    "A training process or a container ended; the message gives the failure kind and the cause.",
    "Look up the kind in [failures](../failures.md); fix the script if it is the cause.",
)
BACK_OFF = EventReason(
    "RestartDelayed",
    WARNING,
    "The next restart waits, because failures follow each other.",
    "Fix the cause that the previous Event names; `failures.max-backoff` bounds the wait.",
)
RESTART_BUDGET_EXHAUSTED = EventReason(
    "RestartBudgetExhausted",
    WARNING,
    "Restarts cannot help any more. `runPolicy.backoffLimit` is 0, and the operator ends the job.",
    "Fix the cause in the message, then create the job again.",
)
JOB_FAILED = EventReason(
    "TrainingFailed",
    WARNING,
    "The job failed; the message gives the verdict.",
    "Fix the cause; a new job resumes from the last durable checkpoint.",
)
FINISHED = EventReason("TrainingFinished", NORMAL, "All training processes succeeded.", NOTHING)
POD_LOST = EventReason(
    "PodLost",
    WARNING,
    "A pod was lost by eviction, preemption or the loss of its node, or is replaced.",
    "Nothing for one pod; check the node if it repeats.",
)
POD_NOT_REMOVED = EventReason(
    "PodNotRemoved",
    WARNING,
    "The controller may not delete a pod on a silent node.",
    "Grant the right in the message, or delete the pod.",
)
POD_UNSCHEDULABLE = EventReason(
    "PodUnschedulable",
    WARNING,
    "The scheduler finds no node for a pod; the message gives its words.",
    "Free capacity, lower the requests, or set `failures.suspend-after`.",
)
POD_PENDING = EventReason(
    "PodPending",
    WARNING,
    "A pod has a node, but no container has started for some time.",
    "Run `kubectl describe pod`: a volume, a Secret or a ConfigMap may be missing.",
)
HANG = EventReason(
    "Hang",
    WARNING,
    "No rank completed a step within the threshold; the message gives the stacks' difference.",
    "Read where the missing ranks stand; see [hangs](../hangs.md).",
)
HANG_RESOLVED = EventReason("HangResolved", NORMAL, "Steps continue after a hang.", NOTHING)
STRAGGLER = EventReason(
    "Straggler",
    WARNING,
    "The other ranks wait for a slow rank.",
    "Check its node, or set `straggler.action: replace`.",
)
STRAGGLER_REPLACED = EventReason(
    "StragglerReplaced",
    WARNING,
    "The pod of a slow rank is recreated on another node.",
    "Check the node that it left.",
)

# -- nodes -----------------------------------------------------------------------------------------

PREFLIGHT = EventReason(
    "Preflight",
    EITHER,
    "The node check ended; the message gives its measurements. A Warning means a bad pod.",
    "On a Warning, read the `NodeCheckFailed` Events.",
)
NODE_CHECK_FAILED = EventReason(
    "NodeCheckFailed",
    WARNING,
    "The node check found a pod slow, faulty or unclear.",
    "Check the node, or set `preflight.mode: exclude`.",
)
NODE_AVOIDED = EventReason(
    "NodeAvoided",
    WARNING,
    "The job keeps away from a node, and its pods there are recreated.",
    "Check the node; `failures.node-avoid` sets the period.",
)
NODE_AVOIDANCE_ENDED = EventReason(
    "NodeAvoidanceEnded",
    WARNING,
    "Avoided nodes are permitted again, since the job lacks capacity for its minimum.",
    "Add capacity, or repair the nodes.",
)
NODE_CORDONED = EventReason(
    "NodeCordoned",
    WARNING,
    "The controller cordoned a node after a hardware failure or a failed check.",
    "Repair the node, then run `kubectl uncordon`.",
)
NODE_NOT_CORDONED = EventReason(
    "NodeNotCordoned",
    WARNING,
    "The controller may not cordon the node.",
    "Apply the component `cordon` of the manifests, or cordon it by hand.",
)

# -- checkpoints -----------------------------------------------------------------------------------

RESTORED = EventReason(
    "CheckpointRestored",
    NORMAL,
    "A rank restored its state; the message gives the step and the source.",
    NOTHING,
)
DURABLE = EventReason("CheckpointDurable", NORMAL, "A checkpoint is committed to storage.", NOTHING)
CHECKPOINT_WARNING = EventReason(
    "CheckpointWarning",
    WARNING,
    "A checkpoint could not be saved, persisted, copied or read; the message gives the cause.",
    "Fix the cause; see [where checkpoints are kept](../checkpoint-storage.md).",
)
REPLICA_MISMATCH = EventReason(
    "ReplicaMismatch",
    WARNING,
    "Ranks hold different bits of a tensor that must be equal.",
    "Check the named pods' hardware; restart from the last equal step.",
)
DATA_SHARD_QUARANTINED = EventReason(
    "DataShardQuarantined",
    WARNING,
    "A part of a dataset failed repeatedly and is not read any more.",
    "Repair the records that the message names.",
)

# -- sizes -----------------------------------------------------------------------------------------

SCALE_DECISION = EventReason(
    "ScaleDecision",
    NORMAL,
    "The autoscaler chose a number of replicas; the message gives the reason.",
    "In mode `recommend`, apply it if you agree.",
)
SCALED = EventReason("Scaled", NORMAL, "The number of replicas changed.", NOTHING)
SCALE_VERIFIED = EventReason(
    "ScaleVerified", NORMAL, "The measured throughput confirms the new size.", NOTHING
)
SCALE_ROLLED_BACK = EventReason(
    "ScaleRolledBack",
    WARNING,
    "The new size did not pay, and the job returns to the previous one.",
    "Nothing; this is expected on a busy cluster.",
)
SCALE_REFUSED = EventReason(
    "ScaleRefused",
    EITHER,
    "The replicas stay unchanged: a quota, a node, another autoscaler or the policy prevents it.",
    "Resolve the reason in the message, or set `scaling.max`.",
)
MEMORY_RAISED = EventReason(
    "MemoryRaised",
    NORMAL,
    "The memory limit of a replica type was raised.",
    "State the new limit in the manifest.",
)
MEMORY_NOT_RAISED = EventReason(
    "MemoryNotRaised",
    WARNING,
    "Memory ran short, but the limit stays; the message gives the bound.",
    "Set `memory.max`, or lower the script's memory use.",
)
CPU_RAISED = EventReason(
    "CpuRaised",
    NORMAL,
    "The CPU limit of a replica type was raised.",
    "State the new limit in the manifest.",
)
CPU_NOT_RAISED = EventReason(
    "CpuNotRaised",
    WARNING,
    "Pods use up their CPU limit, but it stays; the message gives the bound.",
    "Set `cpu.max`, or free capacity.",
)
SERVER_CPU_THROTTLED = EventReason(
    "ServerCpuThrottled",
    WARNING,
    "Parameter servers use up their CPU limit, and steps wait for them.",
    "Set `scaling.mode: auto` with `cpu.max`, or raise the limit.",
)
WORKER_CPU_THROTTLED = EventReason(
    "WorkerCpuThrottled",
    WARNING,
    "Workers use up their CPU limit, and steps wait for them.",
    "Set `scaling.mode: auto` with `cpu.max`, or raise the limit.",
)
CPU_OVER_REQUESTED = EventReason(
    "CpuOverRequested",
    NORMAL,
    "Pods request clearly more CPU than they use.",
    "Lower the request in the manifest for the next run.",
)

# -- suspension and launchers ----------------------------------------------------------------------

SUSPENDED = EventReason(
    "JobSuspended",
    EITHER,
    "The job is suspended; its pods end, and its state is on storage.",
    "Read the message: some suspensions end automatically, others by `rover-kf resume`.",
)
NOT_SUSPENDED = EventReason(
    "NotSuspended",
    WARNING,
    "The job should be suspended, but would lose state or has another manager.",
    "Set `checkpoint.path`, or suspend it through its manager.",
)
RESUMED = EventReason(
    "JobResumed",
    EITHER,
    "The job was resumed from storage. A Warning names a change that it resumed without.",
    "Read a Warning's message; otherwise nothing.",
)
LAUNCHER_SILENT = EventReason(
    "LauncherSilent",
    WARNING,
    "The launching pipeline step has not renewed its lease for some time.",
    "Check the pipeline's run; the lease expires soon.",
)
LAUNCH_LEASE_EXPIRED = EventReason(
    "LaunchLeaseExpired",
    WARNING,
    "The launch lease expired, and `launch.on-lease-expired` was applied.",
    "Restart the step, which adopts the job.",
)
NOT_DELETED = EventReason(
    "NotDeleted",
    WARNING,
    "The controller may not delete the job and suspended it.",
    "Apply the component `delete-lost` of the manifests, or delete it by hand.",
)

# -- services --------------------------------------------------------------------------------------

CERTIFICATE_INVALID = EventReason(
    "CertificateInvalid",
    WARNING,
    "The sidecars' new certificate is invalid; they keep the previous one.",
    "Repair the Secret that `tls.secret` names.",
)
RECORDED = EventReason("RunRecorded", NORMAL, "The run is in the history.", NOTHING)
HISTORY_UNAVAILABLE = EventReason(
    "HistoryUnavailable",
    WARNING,
    "The history database is unavailable; training does not depend on it.",
    "Check the database and the controller's log.",
)

REASONS = tuple(each for each in tuple(globals().values()) if isinstance(each, EventReason))
