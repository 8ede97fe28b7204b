# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Other numbers of workers or parameter servers, and what each is expected to cost; pure.

One of the two numbers is changed at a time, by a factor of two at most, as far as the law reaches.
Parameter servers are only added. Where one setup alone was ever seen the law says nothing: then one
worker more is offered where that costs nearly nothing, since workers come and go by themselves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from rover_kf.api.records import ServerSetup
from rover_kf.scaling.candidates import QUANTILES
from rover_kf.scaling.ps_decision_input import ServerCase

NINE_IN_TEN = 1.645
"""Standard deviations on both sides, within which nine in ten lie."""
UNKNOWN_SPREAD = 0.4
"""In log space, of a worker more where nothing is known of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServerOffer:
    """A setup that might be gone to."""

    setup: ServerSetup
    rate: float
    """Steps a second that are predicted there."""
    total: float
    """Expected cost of going there, with the way there and perhaps back."""
    cycles: bool
    """Whether all pods end for it."""


def offers(case: ServerCase) -> list[ServerOffer]:
    """Setups that are allowed, within reach and not banned, cheapest first."""
    banned = case.state.banned_setups(case.now)
    found = [
        _offer(case, setup)
        for setup in _setups(case)
        if (setup.workers, setup.servers) not in banned
    ]
    return sorted(found, key=lambda offer: offer.total)


def cycles(case: ServerCase, setup: ServerSetup) -> bool:
    """Whether all pods have to end for a setup."""
    return not case.seen.live or setup.servers != case.seen.setup.servers


def _setups(case: ServerCase) -> Iterator[ServerSetup]:
    here, law, policy = case.seen.setup, case.seen.law, case.policy
    near = [k for k in policy.allowed() if here.workers <= 2 * k and k <= 2 * here.workers]
    workers = [dataclasses.replace(here, workers=k) for k in near if k != here.workers]
    most = min(policy.most_servers, 2 * here.servers)
    servers = range(here.servers + 1, most + 1)
    for setup in (*workers, *(dataclasses.replace(here, servers=count) for count in servers)):
        if cycles(case, setup) and case.seen.stays:
            continue
        one_more = case.seen.live and setup.workers == here.workers + 1
        if one_more if law is None else law.reaches(setup):
            yield setup


def _offer(case: ServerCase, setup: ServerSetup) -> ServerOffer:
    ends, law, rate = cycles(case, setup), case.seen.law, case.predicted(setup)
    spread = UNKNOWN_SPREAD if law is None else law.width / NINE_IN_TEN
    here = case.seen.setup
    back = case.cost(here, case.rate) + case.change_cost(here, cycles=ends)
    total = 0.0
    for quantile in QUANTILES:
        there = rate * math.exp(spread * quantile)
        total += min(case.cost(setup, there), back + _trial(case, setup, there))
    total = total / len(QUANTILES) + case.change_cost(setup, cycles=ends)
    return ServerOffer(setup, rate, total, ends)


def _trial(case: ServerCase, setup: ServerSetup, rate: float) -> float:
    """What is lost while windows show that the setup is worse than the present one."""
    seconds = min(case.policy.settle_windows * case.policy.window_seconds, case.seconds_left)
    at_home = case.size(case.seen.setup) / case.rate
    return max(0.0, seconds * case.size(setup) - seconds * rate * at_home)
