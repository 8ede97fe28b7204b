# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's half of parities: may the pods of a group seal what they have made? Pure.

They may when all have told and, of each slot, the stripes that they have read make up what was
ordered, by its checksum. So what is sealed is of one step and can bring a slot back.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api.checkpoints import Lane
from rover_kf.api.replication import ParityMade, ParityVerdict
from rover_kf.checkpoint.parity import Layout
from rover_kf.sidecar.parity_groups import Lanes

_UNKNOWN, _GOOD = ParityVerdict(known=False), ParityVerdict(known=True)


@dataclasses.dataclass(slots=True)
class ParityVerdicts:
    """Of one order; a new one begins from nothing."""

    lanes: Lanes = dataclasses.field(default_factory=dict)
    _made: dict[str, ParityMade] = dataclasses.field(default_factory=dict)
    _failed: dict[str, str] = dataclasses.field(default_factory=dict)

    def made(self, told: ParityMade) -> None:
        """A pod has made its parities."""
        lanes = self.lanes.get(told.pod, ())
        if [len(sums) for sums in told.sums] != [len(lane.members) for lane in lanes]:
            self.failed(told.pod, "it tells of other lanes than were ordered")
        else:
            self._made[told.pod] = told

    def failed(self, pod: str, reason: str) -> None:
        """A pod has not."""
        self._failed[pod] = reason

    def verdict(self, pod: str) -> ParityVerdict:
        """For a pod that has made its own."""
        lanes = self.lanes.get(pod, ())
        group = {member.pod for lane in lanes for member in lane.members}
        for other in sorted(group & self._failed.keys()):
            reason = f"{other} has made none: {self._failed[other]}"
            return ParityVerdict(known=True, reason=reason, told=True)
        if group - self._made.keys():
            return _UNKNOWN
        wrong = [text for lane in lanes for text in self._wrong(lane)]
        return ParityVerdict(known=True, reason="; ".join(wrong)) if wrong else _GOOD

    def _wrong(self, lane: Lane) -> list[str]:
        """What was read of a lane that was not what was ordered."""
        layout = Layout(tuple(member.snapshot_bytes for member in lane.members))
        # Of each pod what it has read for this lane.
        rows = [
            self._made[member.pod].sums[self.lanes[member.pod].index(lane)]
            for member in lane.members
        ]
        found: list[str] = []
        for number, member in enumerate(lane.members):
            value = layout.checksum(number, [row[number] for row in rows])
            if value != member.checksum:
                found.append(
                    f"what was read of step {member.step} of rank {member.rank} has CRC-32C "
                    f"{value:08x}, {member.checksum:08x} was sealed"
                )
        return found
