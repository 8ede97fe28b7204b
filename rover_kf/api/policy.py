# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job's policy: each value's name, type, default and help, once.

A field ``checkpoint.persist_seconds`` is the annotation ``rover-kf.io/checkpoint.persist-seconds``.
Docs, annotations and the sidecar's variable ROVER_POLICY follow these fields.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any, NoReturn

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.faults import failure_kinds
from rover_kf.api.jobs import MAX_REPLICAS

OBJECT_NAME = r"^[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?$"
"""Of a Secret, a ConfigMap or a claim."""
BYTES, CORES, SECONDS = "bytes", "cores", "seconds"
"""Units: an annotation states a quantity or a duration."""
_MOST = {BYTES: 2**60, CORES: 100_000, SECONDS: 10 * 366 * 86_400}
"""The greatest value of a unit: an exbibyte, and ten years. Later arithmetic stays finite."""
_MOST_NUMBER = 2**53
"""Of other numbers; a float holds each whole number up to it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """The values that a key may have."""

    help: str
    """The allowed values, as errors and docs state them."""
    unit: str = ""
    least: float | None = None
    above: float | None = None
    limit: float = 0
    """0: what the unit allows."""
    choices: tuple[str, ...] = ()
    pattern: str = ""
    parse: Callable[[str], object] | None = None
    """Reads a text; rejects it with an InputError."""

    def rejection(self, value: Any) -> str:
        """Return the allowed values if a value is out of range; else nothing."""
        if value is None or isinstance(value, str):
            return "" if value is None or self._allows_text(value) else self.help
        numbers = value if isinstance(value, tuple) else (value,)
        most = self.limit or _MOST.get(self.unit, _MOST_NUMBER)
        least = -most if self.least is None else self.least
        if not all(n >= least and (self.above is None or n > self.above) for n in numbers):
            return self.help
        return "" if all(n <= most for n in numbers) else f"{self.help}, {most} at most"

    def _allows_text(self, text: str) -> bool:
        if self.choices:
            return text in self.choices
        if self.parse is not None:
            try:
                self.parse(text)
            except errors.InputError:
                return False
        return not self.pattern or re.fullmatch(self.pattern, text) is not None


def value(default: object, help_text: str = "", *, zero: str = "", **rule: Any) -> Any:
    """Define a policy value.

    Args:
        default: what a job has that does not state it.
        help_text: the allowed values, where choices, unit and bounds do not state them all.
        zero: the meaning of 0, if it is a special one.
        **rule: fields of a Rule.
    """
    found = Rule(help_text, **rule)
    if not help_text:
        text = f"{_describe(default, found)}{f'; 0: {zero}' if zero else ''}"
        found = dataclasses.replace(found, help=text)
    return dataclasses.field(default=default, metadata={"rule": found})


def _describe(default: object, rule: Rule) -> str:
    if rule.choices:
        return f"{', '.join(rule.choices[:-1])} or {rule.choices[-1]}"
    bound = f", {rule.least:g} or more" if rule.above is None else f" above {rule.above:g}"
    if rule.unit == SECONDS:
        return f"seconds ({default or 600:g}) or a duration (30s, 2m, 6h){bound}"
    return f"a {'number' if isinstance(default, float) else 'whole number'}{bound}"


@dataclasses.dataclass(frozen=True, slots=True)
class PolicySection:
    """A part of a policy; it holds no value out of range."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            stated = getattr(self, field.name)
            if allowed := field.metadata["rule"].rejection(stated):
                self._reject(field.name, stated, allowed)
        self._check_together()

    def _check_together(self) -> None:
        """Reject values that contradict each other."""

    def _reject(self, field: str, value: object, allowed: str) -> NoReturn:
        raise errors.PolicyError(names.PREFIX + self.key(field), value, allowed=allowed)

    @classmethod
    def key(cls, field: str) -> str:
        """The annotation of a field, without prefix, such as ``checkpoint.keep-every``."""
        sections = dataclasses.fields(PolicySections)
        section = next(item.name for item in sections if item.type == cls.__name__)
        return f"{section}.{field.replace('_', '-')}"


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointPolicy(PolicySection):
    """When state goes to memory and to storage."""

    path: str | None = value(
        None,
        "an absolute path on a volume that the trainer mounts, or a URL such as "
        "s3://bucket/prefix (s3, gs, az) without credentials",
        pattern=rf"^(?:/(?:[^/\x00]+/?)*|{names.OBJECT_URL})$",
    )
    """Folder on shared storage or in a bucket; None keeps checkpoints in memory only."""
    secret: str | None = value(
        None,
        "the name of a Secret whose keys are variables, such as AWS_ACCESS_KEY_ID",
        pattern=OBJECT_NAME,
    )
    """What the sidecar's container alone gets in its environment."""
    bandwidth: int = value(
        512 << 20, "bytes a second such as 100Mi, 1 or more; 0 is no cap", unit=BYTES, least=0
    )
    """Most bytes a second that a pod persists; a flush before the pod ends is not held back. At the
    full speed of a local disk it slows the steps beside it by what they can feel."""
    storage_bandwidth: int | None = value(
        None,
        "bytes a second such as 100Mi, 1Mi or more, that storage takes of one pod",
        unit=BYTES,
        least=1 << 20,
    )
    """What was measured of the storage: how long a pod may take to end depends on it. The client
    fills it in from the history; None counts with 100 MB/s, as of a slow network volume."""
    replica_bandwidth: int = value(
        0, "bytes a second such as 100Mi, 1 or more; 0 is no cap", unit=BYTES, least=0
    )
    """Most bytes a second that a pod copies of another's state; a restore is not held back."""
    peer_copy: str = value("off", choices=("off", "on"))
    """Of a TFJob with parameter servers: the first one keeps a copy of the chief's newest save in
    its pod's memory, since no other pod has that state."""
    shards: str | None = value(
        None,
        "an absolute path on one volume that a TFJob's Chief and PS all mount there",
        pattern=r"^/(?:[^/\x00]+/?)*$",
    )
    """Where each parameter server writes its own variables; None: all go through the chief."""
    every: int = value(50, "a whole number of steps, 1 or more", least=1)
    """Steps between two saves to memory."""
    keep: int = value(3, least=1)
    """The newest checkpoints on storage that retention leaves."""
    keep_every: int | None = value(None, least=1)
    """Checkpoints whose step it divides stay for good."""
    keep_best: str | None = value(
        None,
        "a metric that the script gives, max or min, and how many, such as accuracy:max:2",
        pattern=names.KEEP_BEST_PATTERN,
    )
    """The best checkpoints by that metric stay as long as they are the best."""
    adopt_from: str | None = value(
        None,
        "the job that wrote the checkpoints at this path, as namespace/name",
        pattern=r"^[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}$",
    )
    """That job's checkpoints become this job's; any other owner is rejected."""
    persist_seconds: float = value(60.0, unit=SECONDS, least=0)
    """Least time between two persists; 0 persists whenever the last one has finished."""
    persist_steps: int = value(0, "a whole number of steps; 0: any", least=0)
    """Least steps from one persisted step to the next. A step is persisted once it is far enough
    from the last one in both time and steps; what a failure or an end leaves, at once."""
    verify_replicas_every: int = value(
        10, "a whole number of saves, 1 or more; 0 compares nothing", least=0
    )
    """Saves from one comparison of the ranks' replicas to the next. The sidecar reads each save
    once for its checksum; every tenth save once more adds a tenth to that."""
    arena: int | None = value(
        None, "a quantity of memory such as 4Gi, 1Mi or more", unit=BYTES, least=1 << 20
    )
    """Bytes of all slots of a pod; None takes half of the trainer's memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class ScalingPolicy(PolicySection):
    """How far replicas may follow throughput; counts are Worker replicas, as in elasticPolicy."""

    mode: str = value("recommend", choices=("off", "recommend", "auto"))
    """``recommend`` decides and tells; ``auto`` also patches replicas."""
    min: int | None = value(None, least=1, limit=MAX_REPLICAS)
    max: int | None = value(None, least=1, limit=MAX_REPLICAS)
    sizes: tuple[int, ...] = value(
        (), "a comma-separated list of whole numbers such as 1,2,4", limit=MAX_REPLICAS
    )
    """The only numbers of Worker replicas to choose from; empty: all between min and max."""
    ps_max: int | None = value(None, least=1, limit=MAX_REPLICAS)
    """Most parameter servers of a TFJob; None: as many as it came with."""
    window: float = value(60.0, unit=SECONDS, above=0)
    """Length of one throughput window."""
    cooldown: float = value(300.0, unit=SECONDS, least=0)
    """Least time between two changes of replicas."""
    value_of_time: float = value(2.0, least=0)
    """What an hour less is worth, in replica-hours: 0 minds cost alone, 8 minds time."""
    deadline: float | None = value(None, unit=SECONDS, above=0)
    """From the job's creation on; sizes that are predicted to meet it go before cheaper ones."""
    weight: float = value(1.0, above=0)
    """What the job counts beside others that share a cluster or a quota: a replica goes where the
    weighted gain is greatest."""

    def _check_together(self) -> None:
        low, high = self.min or 1, self.max
        if high is not None and low > high:
            self._reject("min", low, f"at most {names.PREFIX}scaling.max, which is {high}")
        for size in self.sizes:
            if size < low or (high is not None and size > high):
                upper = "" if high is None else f" to {high}"
                allowed = f"whole numbers from {low}{upper} (scaling.min to scaling.max)"
                self._reject("sizes", size, allowed)


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryPolicy(PolicySection):
    """How far a trainer's memory may be raised."""

    max: int | None = value(
        None,
        "a quantity of memory such as 64Gi; without it no limit is raised",
        unit=BYTES,
        least=1,
    )
    """Most bytes that a trainer's memory limit is raised to after a kill for memory; None: it is
    never raised."""


@dataclasses.dataclass(frozen=True, slots=True)
class CpuPolicy(PolicySection):
    """How far CPU may be raised where it holds training back."""

    max: float | None = value(
        None,
        "a quantity of cores such as 8 or 500m; without it no limit is raised",
        unit=CORES,
        least=0.001,
    )
    """Most cores that the CPU limit of a TFJob's PS, or of a PyTorchJob's pods, is raised to where
    it holds one back, with scaling.mode auto; None: it is never raised."""


@dataclasses.dataclass(frozen=True, slots=True)
class FailurePolicy(PolicySection):
    """How often a job may be restarted in place."""

    restarts: int = value(10, least=0)
    """Budget for failures that count; a lost peer does not."""
    restarts_by_kind: str = value(
        "",
        "kinds of failures (docs/failures.md) with restarts, such as disk_full:3,crashed:0; "
        "other kinds have failures.restarts alone",
        parse=failure_kinds.parse_budgets,
    )
    """How many of the restarts single kinds may have; the total holds, too."""
    max_backoff: float = value(60.0, unit=SECONDS, least=0)
    """Longest wait before a restart. The first of a row of failures is made at once, the second
    after a second, and so on, twice as long each time; 0: none waits."""
    node_grace: float = value(5.0, unit=SECONDS, least=0)
    """How long a node may be silent after Kubernetes calls it NotReady; then its pods are removed,
    so that others take their place. A node that comes back ends what it still runs of them."""
    node_avoid: float = value(21600.0, unit=SECONDS, least=0)
    """How long the job keeps away from a node on which training could not go on; 0: not at all."""
    suspend_after: float = value(0.0, unit=SECONDS, least=0, zero="it never is")
    """How long fewer pods than the fewest may be able to train before the job is suspended: its
    pods end, what they held is free, and it goes on from storage when it is resumed."""


@dataclasses.dataclass(frozen=True, slots=True)
class HangPolicy(PolicySection):
    """What follows when no rank makes a step any more."""

    action: str = value("restart", choices=("restart", "report", "off"))
    """``restart`` tells and restarts the processes in place, once for a step."""
    min_seconds: float = value(300.0, unit=SECONDS, above=0)
    """Least time without a step that is a hang."""
    pause_min_seconds: float = value(1800.0, unit=SECONDS, above=0)
    """The same during a first step, an evaluation or a checkpoint."""
    factor: float = value(10.0, least=1)
    """A hang lasts at least so many times the slowest of a hundred steps."""


@dataclasses.dataclass(frozen=True, slots=True)
class StragglerPolicy(PolicySection):
    """What follows when the others wait for a rank that is slow by itself."""

    action: str = value("report", choices=("report", "replace"))
    """``replace`` also gives its pod's place to another one, which keeps away from its node."""
    min_seconds: float = value(600.0, unit=SECONDS, least=0)
    """How long it has to have been slow before its pod is replaced."""
    replacements: int = value(2, least=0)
    """Most pods that are replaced for it in the job's life."""


@dataclasses.dataclass(frozen=True, slots=True)
class PreflightPolicy(PolicySection):
    """Whether nodes are checked before they train."""

    mode: str = value("off", choices=("off", "report", "exclude"))
    """``report`` tells which nodes are slow or broken; ``exclude`` also leaves them out of the job
    for failures.node-avoid, and has their pods replaced."""
    timeout: float = value(20.0, unit=SECONDS, above=0)
    """After which a measurement that has not ended has failed."""


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchPolicy(PolicySection):
    """What becomes of a job whose launcher, a step of a pipeline, is not heard of any more."""

    lease: float = value(600.0, unit=SECONDS, least=0, zero="for ever")
    """How long the launcher may be silent; it counts only for jobs that one has launched."""
    on_lease_expired: str = value("suspend", choices=("suspend", "delete", "keep"))
    """``suspend`` ends its pods and keeps the job, which the step adopts and resumes when it is
    started again; ``delete`` needs a right that the controller has by a component alone."""


@dataclasses.dataclass(frozen=True, slots=True)
class TlsPolicy(PolicySection):
    """Whether sidecars encrypt what they say to each other, and with whose certificates."""

    secret: str | None = value(
        None,
        "the name of a Secret of type kubernetes.io/tls, with ca.crt beside",
        pattern=OBJECT_NAME,
    )
    """In the job's namespace, its certificate for ``rover-kf.NAMESPACE.svc``; None: plain HTTP."""
    authorities: str | None = value(
        None,
        "the name of a ConfigMap whose key ca.crt has certificates of authorities",
        pattern=OBJECT_NAME,
    )
    """Whose certificates are taken besides those of the Secret's own authority; what changes the
    authority puts the next one there first."""

    def _check_together(self) -> None:
        if self.authorities is not None and self.secret is None:
            allowed = f"nothing without {names.PREFIX}tls.secret, which has the pods' certificate"
            self._reject("authorities", self.authorities, allowed)


@dataclasses.dataclass(frozen=True, slots=True)
class NodesPolicy(PolicySection):
    """What may be done to nodes for the sake of all jobs."""

    cordon: str = value("off", choices=("off", "on"))
    """``on``: a node that is left out since its hardware failed, or a check found it bad, is also
    cordoned, so that no other pods come to it; the controller needs the right to do so."""


@dataclasses.dataclass(frozen=True, slots=True)
class PolicySections:
    """All values of one job's policy, with defaults filled in."""

    checkpoint: CheckpointPolicy = CheckpointPolicy()
    scaling: ScalingPolicy = ScalingPolicy()
    memory: MemoryPolicy = MemoryPolicy()
    cpu: CpuPolicy = CpuPolicy()
    failures: FailurePolicy = FailurePolicy()
    hang: HangPolicy = HangPolicy()
    preflight: PreflightPolicy = PreflightPolicy()
    straggler: StragglerPolicy = StragglerPolicy()
    nodes: NodesPolicy = NodesPolicy()
    tls: TlsPolicy = TlsPolicy()
    launch: LaunchPolicy = LaunchPolicy()


@functools.cache
def policy_fields() -> dict[str, dataclasses.Field[Any]]:
    """Every value's field by its annotation, without prefix."""
    policy = PolicySections()
    sections = [getattr(policy, item.name) for item in dataclasses.fields(policy)]
    return {part.key(item.name): item for part in sections for item in dataclasses.fields(part)}
