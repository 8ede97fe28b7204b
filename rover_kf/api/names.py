# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Every string that another process or a person's manifest depends on, once.

A name that stands here is a promise: changing one breaks running jobs.
"""

from __future__ import annotations

PREFIX = "rover-kf.io/"
"""Prefix of our labels and annotations."""

INJECT_LABEL = PREFIX + "inject"
"""Label ``"true"`` opts a job in; a label, since a webhook can select on it."""

INJECTED_ANNOTATION = PREFIX + "injected"
"""Hash of what inject wrote: present on a job that was patched."""

ORIGINAL_COMMAND_ANNOTATION = PREFIX + "original-command"
"""JSON of the trainer's command and args before they were rewritten."""

NOT_REWRITTEN_ANNOTATION = PREFIX + "command-not-rewritten"
"""Why a trainer's command was left as it was: such a job has checkpoints, but no recovery."""

STATUS_ANNOTATION = PREFIX + "status"
"""Bounded JSON with what the controller last saw of the job (at most 4 KiB)."""

CORDONED_ANNOTATION = PREFIX + "cordoned"
"""On a node: which job had it cordoned, and why."""

MEMORY_RAISED_ANNOTATION = PREFIX + "memory-raised"
"""JSON of the memory limits that were raised, by replica type: as stated, and as they are now."""

CPU_RAISED_ANNOTATION = PREFIX + "cpu-raised"
"""The same of CPU limits."""

LAUNCH_RUN_ANNOTATION = PREFIX + "launch-run"
"""Which run of a pipeline has launched the job; a step that is started again adopts its own."""

LAUNCH_RENEWAL_ANNOTATION = PREFIX + "launch-renewal"
"""``<holder> <count>``: counted on by the step that waits for the job; without it nobody does."""

# -- Kubeflow's own names --------------------------------------------------------------------------

KUBEFLOW_GROUP, KUBEFLOW_VERSION = "kubeflow.org", "v1"
PYTORCHJOB, PYTORCHJOBS = "PyTorchJob", "pytorchjobs"
TFJOB, TFJOBS = "TFJob", "tfjobs"
JOB_NAME_LABEL = "training.kubeflow.org/job-name"
OPERATOR_NAME_LABEL = "training.kubeflow.org/operator-name"
REPLICA_TYPE_LABEL = "training.kubeflow.org/replica-type"
REPLICA_INDEX_LABEL = "training.kubeflow.org/replica-index"
PYTORCH_CONTAINER, TENSORFLOW_CONTAINER = "pytorch", "tensorflow"

# -- what inject adds to a pod ---------------------------------------------------------------------

RUNTIME_CONTAINER = "rover-runtime"
"""Init container that copies the runtime into the shared volume."""

SIDECAR_CONTAINER = "rover-sidecar"
"""Native sidecar: an init container with restartPolicy Always."""

VOLUME = "rover"
"""Memory-backed emptyDir shared by sidecar and trainer."""

TOKEN_VOLUME = "rover-token"  # noqa: S105 - a volume's name, not a secret
"""Projected service-account tokens of the sidecar; never mounted into the trainer."""

KEY_VOLUME = "rover-key"
"""The Secret that ``checkpoint.secret`` names; never mounted into the trainer."""

TLS_VOLUME = "rover-tls"
"""The Secret that ``tls.secret`` names; never mounted into the trainer."""

HOME = "/rover"
"""Mount path of VOLUME; holds ``runtime/``, ``run/`` and ``arena/``."""

TOKEN_HOME = "/var/run/rover"  # noqa: S105
"""Mount path of TOKEN_VOLUME in the sidecar: ``token`` (audience rover-kf), ``api-token``,
``ca.crt``."""

KEY_HOME = "/var/run/rover-key"
"""Mount path of KEY_VOLUME in the sidecar: a file for each key of the Secret."""

TLS_HOME = "/var/run/rover-tls"
"""Mount path of TLS_VOLUME in the sidecar."""
TLS_CERTIFICATE, TLS_KEY, TLS_AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
"""Keys of that Secret, as cert-manager writes them; the files have the same names."""
TLS_MORE_AUTHORITIES = "more-ca.crt"
"""File of the authorities that ``tls.authorities`` names, beside them."""
CONTROLLER_AUTHORITIES = "sidecar-ca.crt"
"""File beside the controller's token: whose certificates it takes of jobs' sidecars."""

RUNTIME_DIR, RUN_DIR, ARENA_DIR = "runtime", "run", "arena"
"""Folders below the volume's mount path."""

SOCKET = "run/sidecar.sock"
"""The sidecar's Unix socket below the volume's mount path, mode 0666."""

DRAIN_FILE = "run/drain-at"
"""8 bytes, little-endian unsigned: trainers save and leave at the first step >= this; 0 = go on."""

PORT = 7411
"""The sidecar's one TCP port: peers, coordinator, metrics, probes."""

PORT_NAME, TLS_PORT_NAME = "rover", "rover-tls"
"""What the port is called in the sidecar's container: who asks it knows by that how to speak."""

AUDIENCE = "rover-kf"
"""Audience of the projected token that sidecars send to each other.

A sidecar accepts it from pods of its own job only. It cannot name the job: with generateName the
API server chooses the name after admission.
"""

# -- environment of the sidecar (set by inject) ----------------------------------------------------

ENV_HOME = "ROVER_HOME"
"""Mount path of the shared volume; also in the trainer container."""
ENV_JOB, ENV_NAMESPACE = "ROVER_JOB", "ROVER_NAMESPACE"
ENV_POD_NAME, ENV_POD_UID, ENV_POD_IP = "ROVER_POD_NAME", "ROVER_POD_UID", "ROVER_POD_IP"
ENV_NODE_NAME = "ROVER_NODE_NAME"
ENV_REPLICA_TYPE, ENV_REPLICA_INDEX = "ROVER_REPLICA_TYPE", "ROVER_REPLICA_INDEX"
ENV_COORDINATOR = "ROVER_COORDINATOR"
"""Host name of the coordinator's pod: ``<job>-master-0``, else ``<job>-worker-0``."""
ENV_NODES, ENV_MIN_NODES, ENV_MAX_NODES = "ROVER_NODES", "ROVER_MIN_NODES", "ROVER_MAX_NODES"
"""Pods that train (Master + Worker): at admission, fewest, most."""
ENV_MASTERS = "ROVER_MASTERS"
"""How many of the pods are of type Master (0 or 1)."""
OBJECT_SCHEMES = ("s3://", "gs://", "az://")
OBJECT_URL = r"(?:s3|gs|az)://[a-zA-Z0-9][\w.-]+(?:/[\w.=+~-]+)*/?"
"""Pattern of such a URL: without a user, a password or a query."""
ENV_CHECKPOINT_SHARDS = "ROVER_CHECKPOINT_SHARDS"
"""In the trainer container of a TFJob's chief: the job's folder that its parameter servers write
their variables to."""
ENV_CHECKPOINT_EVERY = "ROVER_CHECKPOINT_EVERY"
"""In the trainer container: steps between two saves to memory."""
ENV_GRACE = "ROVER_GRACE_SECONDS"
"""Between SIGTERM and SIGKILL of the pod."""
ENV_SERVES = "ROVER_SERVES"
"""``1`` in the trainer container of a TFJob's worker or PS that the chief's program drives."""
ENV_TF_CLUSTER = "ROVER_TF_CLUSTER"
"""In the trainer container of a TFJob whose workers come and go: the addresses of all processes
that it may ever have, as JSON, by type."""
ENV_KEEPER, ENV_KEEPS = "ROVER_KEEPER", "ROVER_KEEPS"
"""Host name of the pod of another world that keeps a copy of this one's newest save; and of the pod
whose newest save this one keeps, if it is the first of its type."""
ENV_LEDGER = "ROVER_LEDGER"
"""Host name of the pod whose sidecar lends records to this one's trainer, if that is not the
coordinator's."""
DRAIN_SECONDS, END_SECONDS = 12, 5
"""Of a pod's grace, what is kept for the world to drain, and for the pod to end; the rest is for
the newest state to become durable."""
KEEP_BEST_PATTERN = r"^([^:]+):(max|min):([1-9][0-9]*)$"
"""The form of ``checkpoint.keep-best``: ``metric:max:count`` or ``metric:min:count``."""
ENV_POLICY = "ROVER_POLICY"
"""JSON of the job's policy (policy.py)."""
ENV_ARENA_BYTES = "ROVER_ARENA_BYTES"
"""Most bytes that all slots of the pod may take together."""
ENV_PRELOAD = "ROVER_PRELOAD"
"""Set by the user on the trainer's container: ``off`` forks training processes from a bare Python,
which load torch themselves; ``on`` by default."""
ENV_MEMORY_MAX = "ROVER_MEMORY_MAX"
"""Bytes that the trainer's memory limit may be raised to; only where it may."""
ENV_AUTH = "ROVER_AUTH"
"""``serviceaccount`` (Kubernetes) or ``shared`` (embedded: one random token file)."""
ENV_TOKEN_HOME = "ROVER_TOKEN_HOME"  # noqa: S105
"""Folder of the tokens; see TOKEN_HOME."""
ENV_KEY_HOME = "ROVER_KEY_HOME"
"""Folder of the object store's credentials; see KEY_HOME. Not set: the environment alone."""
ENV_TLS_HOME = "ROVER_TLS_HOME"
"""Folder of certificate, key and authorities; see TLS_HOME. Not set: sidecars speak plain HTTP."""
ENV_WATCH_NAMESPACE = "ROVER_WATCH_NAMESPACE"
"""Of the controller: the one namespace that it looks after."""
ENV_LOG_FORMAT = "ROVER_LOG_FORMAT"
"""``json`` (the default) or ``text``: log lines of sidecar and controller."""
ENV_CONTROLLER_ACCOUNT = "ROVER_CONTROLLER_ACCOUNT"
"""``namespace:serviceaccount`` that may post to a coordinator besides the job's own pods."""

# -- environment that rover-run adds for a training process, beside torchrun's own -----------------

ENV_ROUND = "ROVER_ROUND"
"""Number of the rendezvous round that started this process."""
ENV_GENERATION = "ROVER_GENERATION"
"""Generation of the coordinator that started that round."""
ENV_RESTING = "ROVER_RESTING"
"""Folder in which torchrun's processes mark that they have saved at the step of a drain."""
ENV_ERROR_FILE = "ROVER_ERROR_FILE"
"""Where a training process leaves its exception as JSON before it ends."""
ENV_LAUNCHER = "ROVER_LAUNCHER"
"""Process number of what all training processes of the pod descend from."""

ENV_COMPONENT = "ROVER_COMPONENT"
"""JSON of a pipeline component's function and its parameters (trainer/component.py)."""

# -- HTTP paths (docs/protocol.md) ----------------------------------------------------------------

PATH_HEALTH, PATH_METRICS = "/healthz", "/metrics"
# trainer and launcher to their own sidecar, Unix socket
PATH_ARENA, PATH_SEALED, PATH_RESTORE = "/v1/arena", "/v1/sealed", "/v1/restore"
PATH_WAIT, PATH_FLUSH, PATH_EXAMINE = "/v1/wait", "/v1/flush", "/v1/examine"
PATH_SELF, PATH_HELD = "/v1/self", "/v1/held"
# forwarded by the sidecar to the coordinator; the same path on the coordinator's TCP port
PATH_JOIN, PATH_WATCH, PATH_LEAVE = (
    "/v1/rendezvous/join",
    "/v1/rendezvous/watch",
    "/v1/rendezvous/leave",
)
PATH_FAILURE, PATH_FINISH = "/v1/rendezvous/failure", "/v1/rendezvous/finish"
PATH_TAKEN = "/v1/rendezvous/taken"
PATH_STACKS = "/v1/rendezvous/stacks"
PATH_PREFLIGHT = "/v1/rendezvous/preflight"
PATH_SAMPLES = "/v1/samples"
PATH_DATA_REGISTER, PATH_DATA_LEASE = "/v1/data/register", "/v1/data/lease"
PATH_DATA_PROGRESS = "/v1/data/progress"
# sidecar to coordinator
PATH_COMMIT_SEALED, PATH_COMMIT_DURABLE = "/v1/commit/sealed", "/v1/commit/durable"
PATH_COMMIT_RESOLVE, PATH_COMMIT_WAIT = "/v1/commit/resolve", "/v1/commit/wait"
PATH_REPLICATE, PATH_REPLICATED = "/v1/replicas/order", "/v1/replicas/done"
PATH_COMMIT_NAMED, PATH_COMMIT_GIVEN_UP = "/v1/commit/named", "/v1/commit/given-up"
PATH_COMMIT_LEFT, PATH_COMMIT_READ = "/v1/commit/left", "/v1/commit/read"
PATH_KEPT = "/v1/replicas/kept"
"""Of any sidecar: which slots of others it keeps."""
PATH_REPLICA_DIGEST = "/v1/replicas/digest"
PATH_EVENTS = "/v1/events"
PATH_STATE = "/v1/coordinator/state"
"""GET: the newest copy, for who shall keep one; POST: a copy, for a successor."""
GENERATION_HEADER = "X-Rover-Generation"
"""Of a request to the coordinator: the greatest generation that the pod has heard of; of an answer:
the coordinator's own. A lower one's answer counts for nothing."""
COPY_HEADER = "X-Rover-Copy"
"""``generation.revision`` of the coordinator's state: of a request the copy that the pod keeps; of
an answer the newest, which the pod shall fetch."""
POD_HEADER = "X-Rover-Pod"
STATUS_COPY_WANTED = 428
"""The coordinator is new and does not know the copy that the request tells of: post it first."""
# coordinator to sidecar
PATH_COORDINATOR = "/v1/coordinator"
# controller to coordinator
PATH_STATUS, PATH_SCALE, PATH_ABSENT = "/v1/status", "/v1/scale", "/v1/absent"
PATH_LOST = "/v1/lost"
NO_EVENTS = 10**18 - 1
"""As ``after`` of a status: whoever asks wants none of its Events."""
PATH_HISTORY = "/v1/history"
"""Of the controller, not of a coordinator."""
PATH_PODS = "/v1/pods"
# sidecar to sidecar: PATH_SLOTS/<place>/<state> gives a sealed slot's bytes; the place is a local
# rank or REPLICA_PLACE<rank>, the state is its key (api.states)
PATH_SLOTS = "/v1/slots"
STATE_KEY_PATTERN = "[0-9]{1,18}(?:-[0-9]{1,18}){3}"
SLOT_HEAD = "head"
"""PATH_SLOTS/<place>/<state>/head gives the snapshot's header alone."""
CHECKSUM_HEADER = "X-Rover-Checksum"
"""Of an answer to PATH_SLOTS: CRC-32C of the whole slot, in decimal."""
REPLICA_PLACE = "replica-"
"""Before the rank of another pod whose slot is kept here; also in the arena's folders."""

# -- exit codes of rover-run -----------------------------------------------------------------------

EXIT_DONE = 0
EXIT_USER_ERROR = 1
"""The user's code is wrong: the operator must not retry (permanent under ExitCode)."""
EXIT_USAGE = 2
EXIT_DRAINED = 143
"""Ended by SIGTERM or drained: never 0, or an elastic job would count as Succeeded."""
EXIT_RETRY = 138
"""Infrastructure failure beyond the process: the operator shall replace the pod (>= 128)."""

# -- Event reasons (event_reasons.py has what they mean) -------------------------------------------

EVENT_INJECTED = "RoverInjected"
EVENT_NOT_INJECTED = "NotInjected"
EVENT_NOT_REWRITTEN = "CommandNotRewritten"
EVENT_WORLD_FORMED = "WorldFormed"
EVENT_PROCESS_FAILED = "TrainingProcessFailed"
EVENT_MEMORY_RAISED = "MemoryRaised"
EVENT_MEMORY_NOT_RAISED = "MemoryNotRaised"
EVENT_SERVER_CPU_THROTTLED = "ServerCpuThrottled"
EVENT_WORKER_CPU_THROTTLED = "WorkerCpuThrottled"
EVENT_CPU_RAISED = "CpuRaised"
EVENT_CPU_NOT_RAISED = "CpuNotRaised"
EVENT_CPU_OVER_REQUESTED = "CpuOverRequested"
EVENT_POD_LOST = "PodLost"
EVENT_POD_NOT_REMOVED = "PodNotRemoved"
EVENT_RECOVERED = "Recovered"
EVENT_RESTORED = "CheckpointRestored"
EVENT_DURABLE = "CheckpointDurable"
EVENT_CHECKPOINT_WARNING = "CheckpointWarning"
EVENT_REPLICA_MISMATCH = "ReplicaMismatch"
EVENT_HANG = "Hang"
EVENT_HANG_RESOLVED = "HangResolved"
EVENT_PREFLIGHT = "Preflight"
EVENT_NODE_CHECK_FAILED = "NodeCheckFailed"
EVENT_NODE_AVOIDED = "NodeAvoided"
EVENT_NODE_AVOIDANCE_ENDED = "NodeAvoidanceEnded"
EVENT_NODE_CORDONED = "NodeCordoned"
EVENT_NODE_NOT_CORDONED = "NodeNotCordoned"
EVENT_STRAGGLER = "Straggler"
EVENT_STRAGGLER_REPLACED = "StragglerReplaced"
EVENT_MEMBER_LOST = "MemberLost"
EVENT_MEMBER_LEFT = "MemberLeft"
EVENT_WORKER_JOINED = "WorkerJoined"
EVENT_WORKER_LEFT = "WorkerLeft"
EVENT_POD_SKIPPED = "PodSkipped"
EVENT_POD_UNSCHEDULABLE = "PodUnschedulable"
EVENT_POD_PENDING = "PodPending"
EVENT_COORDINATOR_POD_PRIORITIZED = "CoordinatorPodPrioritized"
EVENT_POD_EXCLUDED = "PodExcluded"
EVENT_BACK_OFF = "RestartDelayed"
EVENT_SUSPENDED = "JobSuspended"
EVENT_NOT_SUSPENDED = "NotSuspended"
EVENT_LAUNCHER_SILENT = "LauncherSilent"
EVENT_LAUNCH_LEASE_EXPIRED = "LaunchLeaseExpired"
EVENT_NOT_DELETED = "NotDeleted"
EVENT_RESUMED = "JobResumed"
EVENT_CERTIFICATE_INVALID = "CertificateInvalid"
EVENT_SCALE_DECISION = "ScaleDecision"
EVENT_SCALED = "Scaled"
EVENT_SCALE_VERIFIED = "ScaleVerified"
EVENT_SCALE_ROLLED_BACK = "ScaleRolledBack"
EVENT_SCALE_REFUSED = "ScaleRefused"
EVENT_STATUS_REJECTED = "StatusRejected"
EVENT_JOB_FAILED = "TrainingFailed"
EVENT_RESTART_BUDGET_EXHAUSTED = "RestartBudgetExhausted"
EVENT_FINISHED = "TrainingFinished"
EVENT_DATA_SHARD_QUARANTINED = "DataShardQuarantined"
EVENT_RECORDED = "RunRecorded"
EVENT_HISTORY_UNAVAILABLE = "HistoryUnavailable"
