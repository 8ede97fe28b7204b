# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a sidecar is told by its environment, read once at its start."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.faults import failure_kinds
from rover_kf.checkpoint.storage.retention import KeepBest, RetentionExceptions
from rover_kf.elastic.hangs.detector import HangLimits
from rover_kf.elastic.rendezvous.rendezvous_limits import RendezvousLimits


@dataclasses.dataclass(frozen=True, slots=True)
class SidecarSettings:
    """One field for each variable that inject writes (rover_kf/api/names.py)."""

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
    checkpoint_path: str | None
    """A folder or a URL; None keeps checkpoints in memory only."""
    checkpoint_every: int
    """Steps between saves to memory."""
    checkpoint_keep: int
    persist_seconds: float
    arena_bytes: int
    """Most bytes of all slots of the pod together."""
    restarts: int
    window_seconds: float
    auth: str
    """``serviceaccount`` or ``shared``."""
    token_home: pathlib.Path
    controller_account: str
    """``namespace:name``; empty: none."""
    checkpoint_bandwidth: int = 0
    """Most bytes a second that are persisted; 0 is no cap."""
    checkpoint_replica_bandwidth: int = 0
    """Most bytes a second of replicas that are copied; 0 is no cap."""
    checkpoint_keep_every: int = 0
    """Checkpoints whose step it divides are never removed; 0: none are."""
    checkpoint_keep_best: str = ""
    """``metric:max:count``; empty: none are kept for being good."""
    checkpoint_check_every: int = 0
    """Saves from one comparison of the ranks' replicas to the next; 0 makes none."""
    persist_steps: int = 0
    """Least steps from one persisted step to the next; 0: any."""
    hang: HangLimits = dataclasses.field(default_factory=HangLimits)
    """How long no rank may make a step, and what follows."""
    preflight: str = "off"
    """``off``, ``report`` or ``exclude``."""
    preflight_seconds: float = 20.0
    """After which a measurement of the check has failed."""
    node: str = ""
    """Kubernetes node of the pod; empty: not known."""
    sizes: tuple[int, ...] = ()
    """The only numbers of pods that may train; empty: all from min_nodes to max_nodes."""
    restarts_by_kind: tuple[tuple[str, int], ...] = ()
    """Of the restarts, how many single kinds of failures may have."""
    back_off: float = 60.0
    """Longest wait before a restart; 0: none waits."""
    port: int = names.PORT
    tls_home: pathlib.Path | None = None
    """Folder of certificate, key and authorities; None: sidecars speak plain HTTP."""

    @property
    def retention_exceptions(self) -> RetentionExceptions:
        """Which checkpoints stay besides the newest.

        Raises:
            InputError: checkpoint_keep_best is not of its form.
        """
        best = self.checkpoint_keep_best
        return RetentionExceptions(
            self.checkpoint_keep_every, KeepBest.parse(best) if best else None
        )

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

    checkpoint_adopt_from: str = ""
    """``namespace/name`` of the job whose checkpoints this one takes over; empty: nobody's."""

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
            sizes=self.sizes,
            restarts=self.restarts,
            restarts_by_kind=self.restarts_by_kind,
            max_backoff=self.back_off,
            first_round=first_round,
        )


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
        checkpoint_path=environment.get(names.ENV_CHECKPOINT_PATH) or None,
        checkpoint_every=int(_number(environment, names.ENV_CHECKPOINT_EVERY, "50")),
        checkpoint_keep=int(_number(environment, names.ENV_CHECKPOINT_KEEP, "3")),
        persist_seconds=_number(environment, names.ENV_PERSIST_SECONDS, "60"),
        arena_bytes=int(_number(environment, names.ENV_ARENA_BYTES)),
        restarts=int(_number(environment, names.ENV_RESTARTS, "10")),
        restarts_by_kind=_by_kind(environment),
        back_off=_number(environment, names.ENV_BACK_OFF, "60"),
        window_seconds=_number(environment, names.ENV_WINDOW_SECONDS, "60"),
        auth=environment.get(names.ENV_AUTH, "serviceaccount"),
        token_home=pathlib.Path(environment.get(names.ENV_TOKEN_HOME, names.TOKEN_HOME)),
        controller_account=environment.get(names.ENV_CONTROLLER_ACCOUNT, ""),
        node=environment.get(names.ENV_NODE_NAME, ""),
        sizes=_sizes(environment),
        checkpoint_bandwidth=int(_number(environment, names.ENV_CHECKPOINT_BANDWIDTH, "0")),
        checkpoint_replica_bandwidth=int(
            _number(environment, names.ENV_CHECKPOINT_REPLICA_BANDWIDTH, "0")
        ),
        checkpoint_keep_every=int(_number(environment, names.ENV_CHECKPOINT_KEEP_EVERY, "0")),
        checkpoint_keep_best=_best(environment),
        persist_steps=int(_number(environment, names.ENV_PERSIST_STEPS, "0")),
        checkpoint_check_every=int(_number(environment, names.ENV_CHECKPOINT_CHECK_EVERY, "10")),
        hang=_hang(environment),
        preflight=_preflight(environment),
        preflight_seconds=_number(environment, names.ENV_PREFLIGHT_SECONDS, "20"),
        tls_home=_folder(environment, names.ENV_TLS_HOME),
        ledger_host=environment.get(names.ENV_LEDGER, ""),
        keeper_host=environment.get(names.ENV_KEEPER, ""),
        keeps_host=_keeps(environment),
        checkpoint_adopt_from=environment.get(names.ENV_CHECKPOINT_ADOPT_FROM, ""),
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


def _best(environment: Mapping[str, str]) -> str:
    value = environment.get(names.ENV_CHECKPOINT_KEEP_BEST, "")
    try:
        return value and str(KeepBest.parse(value))
    except errors.InputError as cause:
        raise errors.InputError(f"{names.ENV_CHECKPOINT_KEEP_BEST}: {cause}") from cause


def _by_kind(environment: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    try:
        return failure_kinds.parse_budgets(environment.get(names.ENV_RESTARTS_BY_KIND, ""))
    except errors.InputError as cause:
        raise errors.InputError(f"{names.ENV_RESTARTS_BY_KIND}: {cause}") from cause


def _hang(environment: Mapping[str, str]) -> HangLimits:
    action = environment.get(names.ENV_HANG_ACTION, "restart")
    if action not in ("restart", "report", "off"):
        known = "restart, report or off is needed"
        raise errors.InputError(f"{names.ENV_HANG_ACTION} is {action!r}; {known}")
    return HangLimits(
        action=action,
        min_seconds=_number(environment, names.ENV_HANG_FLOOR_SECONDS, "300"),
        pause_min_seconds=_number(environment, names.ENV_HANG_PAUSE_SECONDS, "1800"),
        factor=_number(environment, names.ENV_HANG_FACTOR, "10"),
    )


def _preflight(environment: Mapping[str, str]) -> str:
    mode = environment.get(names.ENV_PREFLIGHT, "off")
    if mode not in ("off", "report", "exclude"):
        known = "off, report or exclude is needed"
        raise errors.InputError(f"{names.ENV_PREFLIGHT} is {mode!r}; {known}")
    return mode


def _sizes(environment: Mapping[str, str]) -> tuple[int, ...]:
    value = environment.get(names.ENV_SIZES, "")
    parts = value.split(",") if value else []
    if not all(part.isdecimal() and int(part) for part in parts):
        known = "whole numbers from 1 with commas between them are needed"
        raise errors.InputError(f"{names.ENV_SIZES} is {value!r}; {known}")
    return tuple(map(int, parts))


def _number(environment: Mapping[str, str], name: str, default: str = "") -> float:
    value = environment.get(name) or default
    try:
        return float(value)
    except ValueError as cause:
        raise errors.InputError(f"{name} is {value!r}; a number is needed") from cause
