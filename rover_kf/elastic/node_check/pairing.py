# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which pods reduce together next; pure.

At first everybody has a partner. Then only those meet again of whom nothing good is known: with one
that is proven, if there is one. So a job in which all is well is checked in one round, and one bad
pod of any number is known after the third.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rover_kf.elastic.node_check.measurements import CheckEvidence, assessments

Pair = tuple[str, str]

MAX_ROUNDS = 5
"""After so many what is not known stays so: every one may take a whole time-out."""
FEW = 3
"""Of so many pods all pairs are made: which of two figures is usual, only a third one tells."""


def next_pairs(evidence: CheckEvidence, rounds: int) -> tuple[Pair, ...]:
    """Pairs of the next round; none if nothing more is to be learnt.

    Args:
        evidence: so far, of the pods that are here.
        rounds: how many there were.
    """
    if rounds >= MAX_ROUNDS:
        return ()
    found = assessments(evidence)
    names = [pod.pod for pod in evidence.pods if pod.pod in found]
    met = {frozenset((pair.first, pair.second)) for pair in evidence.pairs}
    unsettled = [n for n in names if not (found[n].proven_good or found[n].proven_bad)]
    if len(names) <= FEW:
        unsettled = names
    # Who has met nobody, then who has a bad pair: a partner that is proven decides about them.
    paired = frozenset().union(*met)
    unsettled.sort(key=lambda name: (name in paired, not found[name].bad_pairs))
    partners = sorted(names, key=lambda name: not found[name].proven_good)
    order = {name: index for index, name in enumerate(names)}
    made: list[Pair] = []
    taken: set[str] = set()
    first = 0
    for name in unsettled:
        while first < len(partners) and partners[first] in taken:
            first += 1
        other = None if name in taken else _next_partner(name, partners, first, taken, met)
        if other is not None:
            taken |= {name, other}
            low, high = sorted((name, other), key=order.__getitem__)
            made.append((low, high))
    return tuple(made)


def _next_partner(
    name: str, partners: Sequence[str], first: int, taken: set[str], met: set[frozenset[str]]
) -> str | None:
    """The first that it has not met."""
    free = (one for one in itertools.islice(partners, first, None) if one not in taken)
    return next((one for one in free if one != name and frozenset((name, one)) not in met), None)
