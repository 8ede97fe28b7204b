# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is broken, in an order in which no container is restarted twice by its kubelet: it would
wait longer each time. The node without power comes last: nodes that start take the cores."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence

from chaos import faults, volumes
from chaos.faults import Fault
from chaos.preemption import preempt
from chaos.scene import FIRST, SECOND
from rover_kf.api import names

_DIED = frozenset({names.EVENT_PROCESS_FAILED, names.EVENT_MEMBER_LOST})
_POD_WENT = frozenset({*_DIED, names.EVENT_MEMBER_LEFT, names.EVENT_POD_LOST})
EXPLAINS = _POD_WENT
"""Any of them says why a round ended: what failed, of which pod and rank."""
_NOT_WRITTEN = frozenset({names.EVENT_CHECKPOINT_WARNING})
_HOUR = 3600


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """A fault and what the job promises of it."""

    name: str
    fault: Fault
    noticed_by: str
    """Who detects it, and how; for the matrix."""
    told: frozenset[str] = frozenset()
    """Events one of which has to tell of it; none: nothing need have happened. Where a new round
    began all the same, one of ``EXPLAINS`` has to tell why."""
    moves: bool = True
    """Training goes on in a new round; else it need only go on."""
    lasts: float = 0.0
    """Seconds that the fault is there at least; then it is healed. 0: until training goes on."""
    in_ci: bool = False
    within: float = 90.0
    """Seconds; the limit of the wait for training to go on."""


_CHILD = "its launcher: the process is its child"
_LEASE = "the coordinator: its connection breaks, then its lease ends"
_KUBELET = "its kubelet: the container's first process has ended"
_NEW_POD = "the others: their coordinator is another one"
_SIGTERM = "its launcher: SIGTERM"

SCENARIOS = (
    Scenario("training process killed", faults.kill_trainer(SECOND), _CHILD, _DIED),
    Scenario("its rank 0 killed", faults.kill_trainer(FIRST), _CHILD, _DIED),
    Scenario("sidecar killed", faults.kill_sidecar(SECOND), _KUBELET, moves=False),
    Scenario("coordinator killed", faults.kill_sidecar(FIRST), _KUBELET, moves=False, in_ci=True),
    Scenario("launcher killed", faults.kill_launcher(SECOND), _LEASE, _DIED),
    Scenario("training process stopped for 8 s", faults.stop_trainer(SECOND),
        "nobody: shorter than a hang", moves=False, lasts=8),
    Scenario("memory volume full", volumes.full_memory(SECOND),
        "nobody: what is written there has its room already", moves=False, lasts=10),
    Scenario("memory volume full, process killed",
        faults.both(volumes.full_memory(FIRST), faults.kill_trainer(SECOND)), _CHILD, _DIED,
        in_ci=True),
    Scenario("storage refuses writes", volumes.storage_refuses,
        "the sidecar: its write", _NOT_WRITTEN, moves=False, lasts=10),
    Scenario("disk of checkpoints full", volumes.full_disk,
        "the sidecar: its write", _NOT_WRITTEN, moves=False, lasts=10),
    Scenario("disk of checkpoints full, pod deleted at once",
        faults.both(volumes.full_disk, faults.delete_pod_at_once(SECOND)), _LEASE, _POD_WENT),
    Scenario("clock of a node an hour ahead", faults.clock_ahead(SECOND, _HOUR),
        "nobody: no wall clock is asked", moves=False, lasts=15),
    Scenario("clock of the first pod's node an hour behind", faults.clock_ahead(FIRST, -_HOUR),
        "nobody: no wall clock is asked", moves=False, lasts=15),
    Scenario("clock an hour ahead, process killed",
        faults.both(faults.clock_ahead(FIRST, _HOUR), faults.kill_trainer(SECOND)), _CHILD, _DIED,
        in_ci=True),
    Scenario("pod deleted", faults.delete_pod(SECOND), _SIGTERM, _POD_WENT),
    Scenario("pod deleted at once", faults.delete_pod_at_once(SECOND), _LEASE, _POD_WENT),
    Scenario("first pod deleted", faults.delete_pod(FIRST), f"{_SIGTERM}; {_NEW_POD}",
        _POD_WENT),
    Scenario("first pod deleted at once", faults.delete_pod_at_once(FIRST), _NEW_POD, _POD_WENT),
    Scenario("clock an hour behind, first pod deleted at once",
        faults.both(faults.clock_ahead(SECOND, -_HOUR), faults.delete_pod_at_once(FIRST)),
        _NEW_POD, _POD_WENT),
    Scenario("node cut off for 5 s", faults.partition(SECOND),
        "the coordinator: its connection breaks", moves=False, lasts=5),
    Scenario("node cut off for longer than a lease", faults.partition(SECOND), _LEASE, _DIED,
        lasts=12),
    Scenario("10 % of packets lost for 20 s", faults.loss(SECOND, 0.1),
        "nobody: TCP sends again", moves=False, lasts=20),
    Scenario("API server silent for a minute", faults.silent("apiserver"),
        "nobody: training needs none", moves=False, lasts=60),
    Scenario("API server silent, process killed",
        faults.kill_trainer_during(faults.silent("apiserver"), SECOND), _CHILD, _DIED, in_ci=True),
    Scenario("DNS silent, launcher killed",
        faults.both(faults.silent("coredns"), faults.kill_launcher(SECOND)), _LEASE, _DIED),
    Scenario("controller killed", faults.kill_controller, _KUBELET, moves=False),
    Scenario("controller away, process killed",
        faults.both(faults.no_controller, faults.kill_trainer(SECOND)), _CHILD, _DIED),
    Scenario("10 % of packets lost, process killed",
        faults.both(faults.loss(SECOND, 0.1), faults.kill_trainer(SECOND)), _CHILD, _DIED),
    Scenario("pod and coordinator at once",
        faults.both(faults.kill_sidecar(FIRST), faults.delete_pod_at_once(SECOND)), _LEASE,
        _POD_WENT, in_ci=True),
    Scenario("preempted by a higher PriorityClass", preempt(SECOND), _SIGTERM, _POD_WENT,
        within=150),
    Scenario("node without power", faults.power_loss, _LEASE, _POD_WENT, within=240),
)  # fmt: skip


def chosen(wish: str, seed: int) -> Sequence[Scenario]:
    """What an option asks for.

    Args:
        wish: ``some``, ``all``, ``random`` for all in an order by chance, or a pattern of names.
        seed: of that chance.
    """
    if wish == "some":
        return [one for one in SCENARIOS if one.in_ci]
    if wish == "random":
        return random.Random(seed).sample(SCENARIOS, len(SCENARIOS))
    return [one for one in SCENARIOS if wish == "all" or re.search(wish, one.name)]
