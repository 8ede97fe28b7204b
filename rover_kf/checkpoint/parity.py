# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How one parity is spread over the pods of a group; pure.

Of n slots each is cut into n - 1 stripes, one for each other pod, and each pod holds the exclusive
or of the stripes that the others have for it (as RAID 5 does over disks). A lost slot's stripes lie
in n - 1 different pods then, each mixed with stripes of slots that are still there:

            slot 0   slot 1   slot 2   slot 3
    pod 0     -        2        1        0        a number: which stripe of the slot
    pod 1     0        -        2        1        goes into the pod's parity
    pod 2     1        0        -        2
    pod 3     2        1        0        -

Slots of unequal length count as if zeros stood behind the shorter ones; those are never read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rover_kf.checkpoint import crc_join


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """A group of at least two slots, each in a pod of its own."""

    lengths: tuple[int, ...]
    """Of the slots, bytes."""

    @property
    def width(self) -> int:
        """Bytes of a pod's parity, and of every stripe but a slot's last ones."""
        return -(-max(self.lengths) // (len(self.lengths) - 1))

    def stripe(self, slot: int, holder: int) -> range:
        """The slot's bytes that go into a pod's parity, from its begin on.

        Args:
            slot: its number in the group.
            holder: number of the pod, another one.
        """
        begin = (holder - slot - 1) % len(self.lengths) * self.width
        length = self.lengths[slot]
        return range(min(begin, length), min(begin + self.width, length))

    def holders(self, slot: int) -> tuple[int, ...]:
        """The pods whose parities have the slot's stripes, in the order of its bytes."""
        count = len(self.lengths)
        return tuple((slot + 1 + stripe) % count for stripe in range(count - 1))

    def others(self, number: int, *but: int) -> tuple[int, ...]:
        """All numbers of the group except these."""
        return tuple(n for n in range(len(self.lengths)) if n != number and n not in but)

    def checksum(self, slot: int, sums: Sequence[int]) -> int:
        """CRC-32C of a whole slot.

        Args:
            slot: its number in the group.
            sums: CRC-32C of the slot's stripe for each pod, the slot's own pod's is not looked at.
        """
        found = 0
        for holder in self.holders(slot):
            found = crc_join.join(found, sums[holder], len(self.stripe(slot, holder)))
        return found
