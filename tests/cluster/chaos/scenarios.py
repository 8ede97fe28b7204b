# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is broken, in an order in which no container is restarted twice by its kubelet: it would
wait longer each time."""

from __future__ import annotations

import dataclasses

from chaos import faults
from chaos.faults import Fault
from chaos.scene import FIRST, SECOND
from rover_kf.api import names

_DIED = frozenset({names.EVENT_PROCESS_FAILED, names.EVENT_MEMBER_LOST})
_POD_WENT = frozenset({*_DIED, names.EVENT_MEMBER_LEFT, names.EVENT_POD_LOST})
_FIRST_WENT = frozenset({*_POD_WENT, names.EVENT_WORLD_FORMED, names.EVENT_RESTORED})
"""The first pod takes its story with it: its successor tells what it began."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """A fault and what the job promises of it."""

    name: str
    fault: Fault
    told: frozenset[str] = frozenset()
    """Events one of which has to tell of it; none: nothing need have happened."""
    moves: bool = True
    """Training goes on in a new round; else it need only go on."""
    lasts: float = 0.0
    """Seconds that the fault is there at least; then it is healed. 0: until training goes on."""
    in_ci: bool = False
    within: float = 90.0
    """Seconds; the limit of the wait for training to go on."""


SCENARIOS = (
    Scenario("training process killed", faults.kill_trainer(SECOND), _DIED),
    Scenario("its rank 0 killed", faults.kill_trainer(FIRST), _DIED),
    Scenario("sidecar killed", faults.kill_sidecar(SECOND), moves=False),
    Scenario("coordinator killed", faults.kill_sidecar(FIRST), moves=False, in_ci=True),
    Scenario("launcher killed", faults.kill_launcher(SECOND), _DIED),
    Scenario("training process stopped for 8 s", faults.stop_trainer(SECOND), moves=False, lasts=8),
    Scenario("memory volume full", faults.full_memory(SECOND), moves=False, lasts=10),
    Scenario("memory volume full, process killed",
        faults.both(faults.full_memory(FIRST), faults.kill_trainer(SECOND)), _DIED, in_ci=True),
    Scenario("storage refuses writes", faults.storage_refuses,
        frozenset({names.EVENT_CHECKPOINT_WARNING}), moves=False, lasts=10),
    Scenario("pod deleted", faults.delete_pod(SECOND), _POD_WENT),
    Scenario("pod deleted at once", faults.delete_pod_at_once(SECOND), _POD_WENT),
    Scenario("first pod deleted", faults.delete_pod(FIRST), _FIRST_WENT),
    Scenario("first pod deleted at once", faults.delete_pod_at_once(FIRST), _FIRST_WENT),
    Scenario("node cut off for 5 s", faults.partition(SECOND), moves=False, lasts=5),
    Scenario("10 % of packets lost for 20 s", faults.loss(SECOND, 0.1), moves=False, lasts=20),
    Scenario("API server silent for a minute", faults.silent("apiserver"), moves=False, lasts=60),
    Scenario("API server silent, process killed",
        faults.kill_trainer_during(faults.silent("apiserver"), SECOND), _DIED, in_ci=True),
    Scenario("DNS silent, launcher killed",
        faults.both(faults.silent("coredns"), faults.kill_launcher(SECOND)), _DIED, in_ci=True),
    Scenario("controller away, process killed",
        faults.both(faults.no_controller, faults.kill_trainer(SECOND)), _DIED),
    Scenario("10 % of packets lost, process killed",
        faults.both(faults.loss(SECOND, 0.1), faults.kill_trainer(SECOND)), _DIED),
    Scenario("pod and coordinator at once",
        faults.both(faults.kill_sidecar(FIRST), faults.delete_pod_at_once(SECOND)), _POD_WENT,
        in_ci=True),
    Scenario("preempted by a higher PriorityClass", faults.preempt(SECOND), _POD_WENT, within=150),
)  # fmt: skip
