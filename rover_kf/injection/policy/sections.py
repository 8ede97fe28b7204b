# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The sections of RoverPolicy: what may be wished for, its default, and how it is said.

A field's description is the phrase that an error shows as what is allowed.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.faults import failure_kinds
from rover_kf.injection import quantities

Cores = Annotated[float, BeforeValidator(quantities.parse_cores)]
OBJECT_NAME = r"^[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?$"
"""Of a Secret, a ConfigMap or a claim."""
Seconds = Annotated[float, BeforeValidator(quantities.parse_seconds)]


def _bytes(value: object) -> int:
    if 0 < quantities.parse(value) < 1:
        raise ValueError("a part of a byte: m is a thousandth, M and Mi are millions")
    return quantities.parse_bytes(value)


Bytes = Annotated[int, BeforeValidator(_bytes)]


def _split_sizes(value: object) -> object:
    return sorted({int(part) for part in value.split(",")}) if isinstance(value, str) else value


def _kinds(value: str) -> str:
    try:
        failure_kinds.parse_budgets(value)
    except errors.InputError as cause:
        raise ValueError(str(cause)) from cause
    return value


class PolicySection(pydantic.BaseModel):
    """A frozen part of a policy; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)


class CheckpointPolicy(PolicySection):
    """When state goes to memory and to storage."""

    path: str | None = Field(
        default=None,
        pattern=rf"^(?:/(?:[^/\x00]+/?)*|{names.OBJECT_URL})$",
        description="an absolute path on a volume that the trainer mounts, or a URL such as "
        "s3://bucket/prefix (s3, gs, az) without credentials",
    )
    """Folder on shared storage or in a bucket; None keeps checkpoints in memory only."""
    secret: str | None = Field(
        default=None,
        pattern=OBJECT_NAME,
        description="the name of a Secret whose keys are variables, such as AWS_ACCESS_KEY_ID",
    )
    """What the sidecar's container alone gets in its environment."""
    bandwidth: Bytes = Field(
        default=512 << 20,
        ge=0,
        description="bytes a second such as 100Mi, 1 or more; 0 is no cap",
    )
    """Most bytes a second that a pod persists; a flush before the pod ends is not held back. At the
    full speed of a local disk it slows the steps beside it by what they can feel."""
    storage_bandwidth: Bytes | None = Field(
        default=None,
        ge=1 << 20,
        description="bytes a second such as 100Mi, 1Mi or more, that storage takes of one pod",
    )
    """What was measured of the storage: how long a pod may take to end depends on it. The client
    fills it in from the history; None counts with 100 MB/s, as of a slow network volume."""
    replica_bandwidth: Bytes = Field(
        default=0, ge=0, description="bytes a second such as 100Mi, 1 or more; 0 is no cap"
    )
    """Most bytes a second that a pod copies of another's state; a restore is not held back."""
    peer_copy: Literal["off", "on"] = Field(default="off", description="off or on")
    """Of a TFJob with parameter servers: the first one keeps a copy of the chief's newest save in
    its pod's memory, since no other pod has that state."""
    shards: str | None = Field(
        default=None,
        pattern=r"^/(?:[^/\x00]+/?)*$",
        description="an absolute path on one volume that a TFJob's Chief and PS all mount there",
    )
    """Where each parameter server writes its own variables; None: all go through the chief."""
    every: int = Field(default=50, ge=1, description="a whole number of steps, 1 or more")
    """Steps between two saves to memory."""
    keep: int = Field(default=3, ge=1, description="a whole number, 1 or more")
    """The newest checkpoints on storage that retention leaves."""
    keep_every: int | None = Field(default=None, ge=1, description="a whole number, 1 or more")
    """Checkpoints whose step it divides stay for good."""
    keep_best: str | None = Field(
        default=None,
        pattern=names.KEEP_BEST_PATTERN,
        description="a metric that the script gives, max or min, and how many, such as "
        "accuracy:max:2",
    )
    """The best checkpoints by that metric stay as long as they are the best."""
    adopt_from: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}$",
        description="the job that wrote the checkpoints at this path, as namespace/name",
    )
    """That job's checkpoints become this job's; any other owner is rejected."""
    persist_seconds: Seconds = Field(
        default=60.0, ge=0, description="seconds (60) or a duration (5s, 2m), 0 or more"
    )
    """Least time between two persists; 0 persists whenever the last one has finished."""
    persist_steps: int = Field(default=0, ge=0, description="a whole number of steps; 0: any")
    """Least steps from one persisted step to the next. A step is persisted once it is far enough
    from the last one in both time and steps; what a failure or an end leaves, at once."""
    verify_replicas_every: int = Field(
        default=10, ge=0, description="a whole number of saves, 1 or more; 0 compares nothing"
    )
    """Saves from one comparison of the ranks' replicas to the next. The sidecar reads each save
    once for its checksum; every tenth save once more adds a tenth to that."""
    arena: Bytes | None = Field(
        default=None, ge=1 << 20, description="a quantity of memory such as 4Gi, 1Mi or more"
    )
    """Bytes of all slots of a pod; None takes half of the trainer's memory."""


class ScalingPolicy(PolicySection):
    """How far replicas may follow throughput; counts are Worker replicas, as in elasticPolicy."""

    mode: Literal["off", "recommend", "auto"] = Field(
        default="recommend", description="off, recommend or auto"
    )
    """``recommend`` decides and tells; ``auto`` also patches replicas."""
    min: int | None = Field(default=None, ge=1, description="a whole number, 1 or more")
    max: int | None = Field(default=None, ge=1, description="a whole number, 1 or more")
    sizes: Annotated[tuple[int, ...], BeforeValidator(_split_sizes)] = Field(
        default=(), description="a comma-separated list of whole numbers such as 1,2,4"
    )
    """The only numbers of Worker replicas to choose from; empty: all between min and max."""
    ps_max: int | None = Field(default=None, ge=1, description="a whole number, 1 or more")
    """Most parameter servers of a TFJob; None: as many as it came with."""
    window: Seconds = Field(
        default=60.0, gt=0, description="seconds (60) or a duration (5s, 2m) above 0"
    )
    """Length of one throughput window."""
    cooldown: Seconds = Field(
        default=300.0, ge=0, description="seconds (300) or a duration (5s, 2m), 0 or more"
    )
    """Least time between two changes of replicas."""
    value_of_time: float = Field(default=2.0, ge=0, description="a number, 0 or more")
    """What an hour less is worth, in replica-hours: 0 minds cost alone, 8 minds time."""
    deadline: Seconds | None = Field(
        default=None, gt=0, description="seconds (86400) or a duration (30m, 6h) above 0"
    )
    """From the job's creation on; sizes that are predicted to meet it go before cheaper ones."""
    weight: float = Field(default=1.0, gt=0, description="a number above 0")
    """What the job counts beside others that share a cluster or a quota: a replica goes where the
    weighted gain is greatest."""

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> ScalingPolicy:
        low, high = self.min or 1, self.max
        if high is not None and low > high:
            allowed = f"at most {names.PREFIX}scaling.max, which is {high}"
            raise errors.PolicyError(names.PREFIX + "scaling.min", low, allowed=allowed)
        for size in self.sizes:
            if size < low or (high is not None and size > high):
                upper = "" if high is None else f" to {high}"
                allowed = f"whole numbers from {low}{upper} (scaling.min to scaling.max)"
                raise errors.PolicyError(names.PREFIX + "scaling.sizes", size, allowed=allowed)
        return self


class MemoryPolicy(PolicySection):
    """How far a trainer's memory may be raised."""

    max: Bytes | None = Field(
        default=None,
        ge=1,
        description="a quantity of memory such as 64Gi; without it no limit is raised",
    )
    """Most bytes that a trainer's memory limit is raised to after a kill for memory; None: it is
    never raised."""


class CpuPolicy(PolicySection):
    """How far CPU may be raised where it holds training back."""

    max: Cores | None = Field(
        default=None,
        ge=0.001,
        description="a quantity of cores such as 8 or 500m; without it no limit is raised",
    )
    """Most cores that the CPU limit of a TFJob's PS, or of a PyTorchJob's pods, is raised to where
    it holds one back, with scaling.mode auto; None: it is never raised."""


class FailurePolicy(PolicySection):
    """How often a job may be restarted in place."""

    restarts: int = Field(default=10, ge=0, description="a whole number, 0 or more")
    """Budget for failures that count; a lost peer does not."""
    restarts_by_kind: Annotated[str, AfterValidator(_kinds)] = Field(
        default="",
        description="kinds of failures (docs/failures.md) with restarts, such as "
        "disk_full:3,crashed:0; other kinds have failures.restarts alone",
    )
    """How many of the restarts single kinds may have; the total holds, too."""
    max_backoff: Seconds = Field(
        default=60.0, ge=0, description="seconds (60) or a duration (30s, 2m), 0 or more"
    )
    """Longest wait before a restart. The first of a row of failures is made at once, the second
    after a second, and so on, twice as long each time; 0: none waits."""
    node_grace: Seconds = Field(
        default=5.0, ge=0, description="seconds (5) or a duration (30s, 5m), 0 or more"
    )
    """How long a node may be silent after Kubernetes calls it NotReady; then its pods are removed,
    so that others take their place. A node that comes back ends what it still runs of them."""
    node_avoid: Seconds = Field(
        default=21600.0, ge=0, description="seconds (21600) or a duration (30m, 6h), 0 or more"
    )
    """How long the job keeps away from a node on which training could not go on; 0: not at all."""
    suspend_after: Seconds = Field(
        default=0.0,
        ge=0,
        description="seconds (600) or a duration (10m, 1h), 0 or more; 0: it never is",
    )
    """How long fewer pods than the fewest may be able to train before the job is suspended: its
    pods end, what they held is free, and it goes on from storage when it is resumed."""


class HangPolicy(PolicySection):
    """What follows when no rank makes a step any more."""

    action: Literal["restart", "report", "off"] = Field(
        default="restart", description="restart, report or off"
    )
    """``restart`` tells and restarts the processes in place, once for a step."""
    min_seconds: Seconds = Field(
        default=300.0, gt=0, description="seconds (300) or a duration (5s, 2m) above 0"
    )
    """Least time without a step that is a hang."""
    pause_min_seconds: Seconds = Field(
        default=1800.0, gt=0, description="seconds (1800) or a duration (5s, 2m) above 0"
    )
    """The same during a first step, an evaluation or a checkpoint."""
    factor: float = Field(default=10.0, ge=1, description="a number, 1 or more")
    """A hang lasts at least so many times the slowest of a hundred steps."""


class StragglerPolicy(PolicySection):
    """What follows when the others wait for a rank that is slow by itself."""

    action: Literal["report", "replace"] = Field(default="report", description="report or replace")
    """``replace`` also gives its pod's place to another one, which keeps away from its node."""
    min_seconds: Seconds = Field(
        default=600.0, ge=0, description="seconds (600) or a duration (10m, 1h), 0 or more"
    )
    """How long it has to have been slow before its pod is replaced."""
    replacements: int = Field(default=2, ge=0, description="a whole number, 0 or more")
    """Most pods that are replaced for it in the job's life."""


class PreflightPolicy(PolicySection):
    """Whether nodes are checked before they train."""

    mode: Literal["off", "report", "exclude"] = Field(
        default="off", description="off, report or exclude"
    )
    """``report`` tells which nodes are slow or broken; ``exclude`` also leaves them out of the job
    for failures.node-avoid, and has their pods replaced."""
    timeout: Seconds = Field(
        default=20.0, gt=0, description="seconds (20) or a duration (10s, 1m) above 0"
    )
    """After which a measurement that has not ended has failed."""


class LaunchPolicy(PolicySection):
    """What becomes of a job whose launcher, a step of a pipeline, is not heard of any more."""

    lease: Seconds = Field(
        default=600.0, ge=0, description="seconds (600) or a duration (10m, 1h); 0: for ever"
    )
    """How long the launcher may be silent; it counts only for jobs that one has launched."""
    on_lease_expired: Literal["suspend", "delete", "keep"] = Field(
        default="suspend", description="suspend, delete or keep"
    )
    """``suspend`` ends its pods and keeps the job, which the step adopts and resumes when it is
    started again; ``delete`` needs a right that the controller has by a component alone."""


class TlsPolicy(PolicySection):
    """Whether sidecars encrypt what they say to each other, and with whose certificates."""

    secret: str | None = Field(
        default=None,
        pattern=OBJECT_NAME,
        description="the name of a Secret of type kubernetes.io/tls, with ca.crt beside",
    )
    """In the job's namespace, its certificate for ``rover-kf.NAMESPACE.svc``; None: plain HTTP."""
    authorities: str | None = Field(
        default=None,
        pattern=OBJECT_NAME,
        description="the name of a ConfigMap whose key ca.crt has certificates of authorities",
    )
    """Whose certificates are taken besides those of the Secret's own authority; what changes the
    authority puts the next one there first."""

    @pydantic.model_validator(mode="after")
    def _with_secret(self) -> TlsPolicy:
        if self.authorities is not None and self.secret is None:
            allowed = f"nothing without {names.PREFIX}tls.secret, which has the pods' certificate"
            key = names.PREFIX + "tls.authorities"
            raise errors.PolicyError(key, self.authorities, allowed=allowed)
        return self


class NodesPolicy(PolicySection):
    """What may be done to nodes for the sake of all jobs."""

    cordon: Literal["off", "on"] = Field(default="off", description="off or on")
    """``on``: a node that is left out since its hardware failed, or a check found it bad, is also
    cordoned, so that no other pods come to it; the controller needs the right to do so."""
