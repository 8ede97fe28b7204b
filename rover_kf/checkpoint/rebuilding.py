# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which slots nobody has any more, but parities can bring back; pure.

A parity is of the very slots that it names by step, round, rank and checksum. So it is never mixed
with what a pod saved later, nor with the same step after a rollback.
"""

from __future__ import annotations

from collections.abc import Sequence

from rover_kf.api.checkpoints import Holding, Lane, Parity, Rebuild

_Identity = tuple[int, int, int, int, int]


def rebuilds(holdings: Sequence[Holding], parities: Sequence[Parity]) -> tuple[Rebuild, ...]:
    """Slots that can be put together; each is the only one that its group lacks.

    Args:
        holdings: all that are there.
        parities: all that are there.
    """
    present = {_identity(holding): holding for holding in holdings}
    by_lane: dict[Lane, dict[str, Parity]] = {}
    for parity in parities:
        by_lane.setdefault(parity.lane, {})[parity.slot.pod] = parity
    found: dict[_Identity, Rebuild] = {}
    for lane, held in by_lane.items():
        lost = [member for member in lane.members if _identity(member) not in present]
        others = [held.get(member.pod) for member in lane.members if member not in lost]
        needed = tuple(parity for parity in others if parity is not None)
        if len(lost) == 1 and len(needed) == len(others):
            members = tuple(present.get(_identity(m), m) for m in lane.members)
            found[_identity(lost[0])] = Rebuild(lost[0], members, needed)
    return tuple(found.values())


def _identity(holding: Holding) -> _Identity:
    return (
        holding.step, holding.round, holding.world_size, holding.rank, holding.checksum
    )  # fmt: skip
