# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What each rank of the newest round restores, which outlives the coordinator's process.

Written before the first rank is answered. A pod that is lost takes its round with it, so it need
not outlive the pod.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Mapping

from rover_kf.api import codec, names, shared_files
from rover_kf.api.checkpoints import ResolveReply
from rover_kf.sidecar import pod_file

_log = logging.getLogger(__name__)

NAME = "common-step.json"

Plan = Mapping[int, ResolveReply]
"""Each rank's answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class KeptPlan:
    """The file."""

    pod_uid: str
    round: int
    answers: dict[str, ResolveReply]
    """By rank."""

    @property
    def plan(self) -> Plan:
        """Each rank's answer."""
        return {int(rank): answer for rank, answer in self.answers.items()}


class PlanFile:
    """One a coordinator.

    Args:
        home: mount path of the shared volume.
        pod_uid: whose plan it is: a volume may outlive its pod where it runs embedded.
    """

    def __init__(self, home: pathlib.Path, pod_uid: str) -> None:
        self._path = home / names.RUN_DIR / NAME
        self._pod_uid = pod_uid

    def write(self, number: int, plan: Plan) -> None:
        """Keep the answers of a round; only the newest are."""
        answers = {str(rank): answer for rank, answer in plan.items()}
        try:
            shared_files.replace(self._path, codec.dumps(KeptPlan(self._pod_uid, number, answers)))
        except OSError as error:
            _log.warning("what round %d restores could not be kept: %s", number, error)

    def read(self) -> KeptPlan | None:
        """What was kept; None if there is nothing of this pod's."""
        otherwise = "ranks have to ask again"
        return pod_file.read(self._path, KeptPlan, self._pod_uid, otherwise=otherwise)
