# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which ranks differ from the others in what all should hold alike, and in which tensors; pure.

Ranks of data-parallel training apply the same averaged gradients to the same parameters, so that
these are equal bit by bit. Where they are not, memory or arithmetic of a node is wrong, or the
script changes something on one rank alone.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Collection, Mapping, Sequence

from rover_kf.api.replication import TensorChecksum

MAX_LISTED, MAX_NAME_LENGTH = 4096, 120
"""Bounds of a listing: entries, characters of a name."""
_MAX_COMPARED = 8
"""States that differ from one another whose listings are compared."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaGroups:
    """The ranks by what they hold: those of one group hold the same."""

    groups: tuple[tuple[int, ...], ...]
    """The largest first, then by the lowest rank; ranks ascend."""

    @property
    def is_unanimous(self) -> bool:
        """Whether nobody differs."""
        return len(self.groups) <= 1

    @property
    def has_plurality(self) -> bool:
        """Whether one group counts as right: two or more agree, and no other group is as large."""
        first, *rest = (*map(len, self.groups), 0)
        return first > 1 and all(size < first for size in rest)

    @property
    def suspects(self) -> tuple[int, ...]:
        """Ranks that differ from the group that is right; all of them if none is."""
        groups = self.groups[1:] if self.has_plurality else self.groups
        return tuple(sorted(rank for group in groups for rank in group))

    @property
    def representatives(self) -> tuple[int, ...]:
        """One rank a group, the first group's first: their listings show where they differ."""
        return tuple(group[0] for group in self.groups[:_MAX_COMPARED])


def group_by_digest(digests: Mapping[int, int]) -> ReplicaGroups:
    """Group ranks by their digests.

    Args:
        digests: by rank.
    """
    groups: dict[int, list[int]] = {}
    for rank in sorted(digests):
        groups.setdefault(digests[rank], []).append(rank)
    ordered = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    return ReplicaGroups(tuple(map(tuple, ordered)))


def combine_digests(sums: Sequence[TensorChecksum]) -> int:
    """One number for all tensors: CRC-32 of their names and checksums, in order."""
    found = 0
    for item in sums:
        found = zlib.crc32(f"{item.name}\0{item.checksum:08x}\n".encode(), found)
    return found


def condense_listing(sums: Sequence[TensorChecksum]) -> tuple[TensorChecksum, ...]:
    """The sums with short names, and no more than MOST_LISTED: neighbours are put together."""
    each = max(-(-len(sums) // MAX_LISTED), 1)
    parts = (sums[begin : begin + each] for begin in range(0, len(sums), each))
    return tuple(_merge_sums(part) for part in parts)


def differing_names(listings: Sequence[Collection[TensorChecksum]]) -> tuple[str, ...]:
    """Names of tensors in which listings differ from the first one, in its order.

    A tensor that one of the two lacks is one in which they differ.
    """
    first, *rest = listings
    odd = {item for other in rest for item in set(first) ^ set(other)}
    ordered = [*first, *(item for other in rest for item in other)]
    return tuple(dict.fromkeys(item.name for item in ordered if item in odd))


def _merge_sums(part: Sequence[TensorChecksum]) -> TensorChecksum:
    name = part[0].name
    if len(part) == 1:
        return TensorChecksum(_shorten(name), part[0].checksum)
    return TensorChecksum(
        f"{_shorten(name)} or the {len(part) - 1} after it", combine_digests(part)
    )


def _shorten(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else "…" + name[1 - MAX_NAME_LENGTH :]
