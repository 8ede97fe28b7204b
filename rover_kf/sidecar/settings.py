# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a sidecar is told by its environment, read once at its start."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.policy import PolicySections
from rover_kf.checkpoint.storage.retention import KeepBest, RetentionExceptions
from rover_kf.elastic.rendezvous.rendezvous_limits import RendezvousLimits


@dataclasses.dataclass(frozen=True, slots=True)
class SidecarSettings:
    """One field for each variable that inject writes (rover_kf/api/names.py); the policy is one."""

    volume_path: pathlib.Path
    """Mount path of the shared volume."""
    job: str
    namespace: str
    pod: str
    pod_uid: str
    address: str
    """IP address that the TCP port is bound to and that peers use."""
    replica_type: str
    """``master``, ``chief``, ``worker``, ``ps`` or ``evaluator``."""
    replica_index: int
    coordinator_host: str
    nodes: int
    """Pods that train, at admission."""
    min_nodes: int
    max_nodes: int
    masters: int
    arena_bytes: int
    """Most bytes of all slots of the pod together."""
    auth: str
    """``serviceaccount`` or ``shared``."""
    token_home: pathlib.Path
    controller_account: str
    """``namespace:name``; empty: none."""
    node: str = ""
    """Kubernetes node of the pod; empty: not known."""
    policy: PolicySections = dataclasses.field(default_factory=PolicySections)
    port: int = names.PORT
    tls_home: pathlib.Path | None = None
    """Folder of certificate, key and authorities; None: sidecars speak plain HTTP."""

    @property
    def retention_exceptions(self) -> RetentionExceptions:
        """Which checkpoints stay besides the newest."""
        checkpoint = self.policy.checkpoint
        best = KeepBest.parse(checkpoint.keep_best) if checkpoint.keep_best else None
        return RetentionExceptions(checkpoint.keep_every or 0, best)

    @property
    def node_rank(self) -> int:
        """Replica order over the world: Master-0 or Chief-0 first, then the workers."""
        if self.pod == self.coordinator_host:  # a TFJob's server, too: it is a world of its own
            return 0
        return self.replica_index + (self.masters if self.replica_type == "worker" else 0)

    ledger_host: str = ""
    """Host name of the pod whose sidecar lends records; empty: the coordinator's."""
    keeper_host: str = ""
    """Name of the pod of another world that keeps a copy of the newest save; empty: none does."""
    keeps_host: str = ""
    """Host name of the coordinator of another world, a copy of whose newest save is kept here."""

    @property
    def owner(self) -> str:
        """Of what this job stores: ``namespace/name``. A job that is created again resumes."""
        return f"{self.namespace}/{self.job}"

    @property
    def endpoint(self) -> str:
        """``host:port`` that peers reach this sidecar at."""
        return f"{self.address}:{self.port}"

    @property
    def is_coordinator(self) -> bool:
        """Whether this pod is its world's first."""
        return self.node_rank == 0

    def limits(self, first_round: int) -> RendezvousLimits:
        """That bound the rendezvous.

        Args:
            first_round: least number of the first round.
        """
        return RendezvousLimits(
            nodes=self.nodes,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            sizes=self._world_sizes(),
            failures=self.policy.failures,
            first_round=first_round,
        )

    def _world_sizes(self) -> tuple[int, ...]:
        """The numbers of pods that may train, as far as the job's bounds let them; empty: all."""
        sizes = (self.masters + size for size in self.policy.scaling.sizes)
        return tuple(size for size in sizes if self.min_nodes <= size <= self.max_nodes)


def read(environment: Mapping[str, str]) -> SidecarSettings:
    """Read the settings.

    Raises:
        InputError: a variable is missing or is not what it should be; the message names it.
    """
    return SidecarSettings(
        volume_path=pathlib.Path(environment.get(names.ENV_HOME, names.HOME)),
        job=_text(environment, names.ENV_JOB),
        namespace=_text(environment, names.ENV_NAMESPACE),
        pod=_text(environment, names.ENV_POD_NAME),
        pod_uid=_text(environment, names.ENV_POD_UID),
        address=_text(environment, names.ENV_POD_IP),
        replica_type=_text(environment, names.ENV_REPLICA_TYPE),
        replica_index=int(_number(environment, names.ENV_REPLICA_INDEX)),
        coordinator_host=_text(environment, names.ENV_COORDINATOR),
        nodes=int(_number(environment, names.ENV_NODES)),
        min_nodes=int(_number(environment, names.ENV_MIN_NODES)),
        max_nodes=int(_number(environment, names.ENV_MAX_NODES)),
        masters=int(_number(environment, names.ENV_MASTERS, "0")),
        arena_bytes=int(_number(environment, names.ENV_ARENA_BYTES)),
        auth=environment.get(names.ENV_AUTH, "serviceaccount"),
        token_home=pathlib.Path(environment.get(names.ENV_TOKEN_HOME, names.TOKEN_HOME)),
        controller_account=environment.get(names.ENV_CONTROLLER_ACCOUNT, ""),
        node=environment.get(names.ENV_NODE_NAME, ""),
        policy=_policy(environment),
        tls_home=_folder(environment, names.ENV_TLS_HOME),
        ledger_host=environment.get(names.ENV_LEDGER, ""),
        keeper_host=environment.get(names.ENV_KEEPER, ""),
        keeps_host=_keeps(environment),
    )


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise errors.InputError(f"{name} is not set; rover-kf's inject sets it: patch the job anew")
    return value


def _keeps(environment: Mapping[str, str]) -> str:
    """All pods of a type are told; the first one does."""
    first = int(_number(environment, names.ENV_REPLICA_INDEX)) == 0
    return environment.get(names.ENV_KEEPS, "") if first else ""


def _folder(environment: Mapping[str, str], name: str) -> pathlib.Path | None:
    value = environment.get(name)
    return pathlib.Path(value) if value else None


def _policy(environment: Mapping[str, str]) -> PolicySections:
    """The defaults for what the variable does not state."""
    try:
        return codec.loads(PolicySections, environment.get(names.ENV_POLICY, "{}"))
    except errors.ProtocolError as cause:
        raise errors.InputError(f"{names.ENV_POLICY}: {cause}") from cause


def _number(environment: Mapping[str, str], name: str, default: str = "") -> float:
    value = environment.get(name) or default
    try:
        return float(value)
    except ValueError as cause:
        raise errors.InputError(f"{name} is {value!r}; a number is needed") from cause
