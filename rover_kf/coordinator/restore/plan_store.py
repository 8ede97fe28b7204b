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
from collections.abc import Mapping, Sequence

from rover_kf.api import codec, names
from rover_kf.api.checkpoints import RestoreStepReply, SlotInfo
from rover_kf.api.states import RoundId
from rover_kf.sidecar import local_file
from rover_kf.system import shared_volume

_log = logging.getLogger(__name__)

PLAN_FILE = "common-step.json"

Plan = Mapping[int, RestoreStepReply]
"""Each rank's answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class _StoredReply:
    """A rank's, with places in the file's list for what hundreds of ranks' answers have alike."""

    reply: RestoreStepReply
    holdings: tuple[int, ...]
    others: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class StoredPlan:
    """The file."""

    pod_uid: str
    round: RoundId
    lives: dict[str, str]
    """Of the processes that were answered, by rank."""
    answers: dict[str, _StoredReply]
    """By rank."""
    holdings: tuple[SlotInfo, ...]
    verified: bool = False
    """Every rank has read and verified what it restores from storage."""

    @property
    def lives_by_rank(self) -> dict[int, str]:
        """Of the processes that were answered."""
        return {int(rank): life for rank, life in self.lives.items()}

    @property
    def plan(self) -> Plan:
        """Each rank's answer."""
        return {
            int(rank): dataclasses.replace(
                answer.reply,
                slots=tuple(self.holdings[place] for place in answer.holdings),
                alternatives=tuple(self.holdings[place] for place in answer.others),
            )
            for rank, answer in self.answers.items()
        }


class _UniqueList:
    """Each holding once: the same object is in many answers."""

    def __init__(self) -> None:
        self._indexes: dict[int, int] = {}
        self.items: list[SlotInfo] = []

    def indexes(self, items: Sequence[SlotInfo]) -> tuple[int, ...]:
        """Where these are in the list from now on."""
        for item in items:
            if self._indexes.setdefault(id(item), len(self.items)) == len(self.items):
                self.items.append(item)
        return tuple(self._indexes[id(item)] for item in items)


def _to_stored(
    pod_uid: str, current: RoundId, plan: Plan, lives: Mapping[int, str], *, verified: bool
) -> StoredPlan:
    holdings = _UniqueList()
    answers = {
        str(rank): _StoredReply(
            dataclasses.replace(answer, slots=(), alternatives=()),
            holdings.indexes(answer.slots),
            holdings.indexes(answer.alternatives),
        )
        for rank, answer in plan.items()
    }
    named = {str(rank): life for rank, life in lives.items()}
    return StoredPlan(pod_uid, current, named, answers, tuple(holdings.items), verified)


class RestorePlanStore:
    """One a coordinator.

    Args:
        volume_path: mount path of the shared volume.
        pod_uid: whose plan it is: a volume may outlive its pod where it runs embedded.
    """

    def __init__(self, volume_path: pathlib.Path, pod_uid: str) -> None:
        self._path = volume_path / names.RUN_DIR / PLAN_FILE
        self._pod_uid = pod_uid

    def write(
        self, current: RoundId, plan: Plan, lives: Mapping[int, str], *, verified: bool = False
    ) -> None:
        """Keep the answers of a round, and who got them; only the newest are."""
        stored = _to_stored(self._pod_uid, current, plan, lives, verified=verified)
        try:
            shared_volume.replace(self._path, codec.dumps(stored))
        except OSError as error:
            _log.warning("what round %s restores could not be kept: %s", current, error)

    def read(self) -> StoredPlan | None:
        """What was kept; None if there is nothing of this pod's."""
        otherwise = "ranks have to ask again"
        return local_file.read(self._path, StoredPlan, self._pod_uid, otherwise=otherwise)
