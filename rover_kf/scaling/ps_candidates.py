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
from rover_kf.scaling.ps_decision_input import PsDecisionInput

NINE_IN_TEN = 1.645
"""Standard deviations on both sides, within which nine in ten lie."""
UNKNOWN_SPREAD = 0.4
"""In log space, of a worker more where nothing is known of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class PsCandidate:
    """A setup that might be gone to."""

    setup: ServerSetup
    rate: float
    """Steps a second that are predicted there."""
    expected_cost: float
    """Expected cost of going there, with the way there and perhaps back."""
    cycles: bool
    """Whether all pods end for it."""


def candidates(case: PsDecisionInput) -> list[PsCandidate]:
    """Setups that are allowed, within reach and not banned, cheapest first."""
    banned = case.state.banned_setups(case.now)
    found = [
        _candidate(case, setup)
        for setup in _setups(case)
        if (setup.workers, setup.servers) not in banned
    ]
    return sorted(found, key=lambda offer: offer.expected_cost)


def needs_suspend(case: PsDecisionInput, setup: ServerSetup) -> bool:
    """Whether all pods have to end for a setup."""
    return not case.observation.live or setup.servers != case.observation.setup.servers


def _setups(case: PsDecisionInput) -> Iterator[ServerSetup]:
    here, law, policy = case.observation.setup, case.observation.model, case.policy
    near = [k for k in policy.allowed() if here.workers <= 2 * k and k <= 2 * here.workers]
    workers = [dataclasses.replace(here, workers=k) for k in near if k != here.workers]
    most = min(policy.max_servers, 2 * here.servers)
    servers = range(here.servers + 1, most + 1)
    for setup in (*workers, *(dataclasses.replace(here, servers=count) for count in servers)):
        if needs_suspend(case, setup) and case.observation.suspend_blocker:
            continue
        one_more = case.observation.live and setup.workers == here.workers + 1
        if one_more if law is None else law.reaches(setup):
            yield setup


def _candidate(case: PsDecisionInput, setup: ServerSetup) -> PsCandidate:
    ends, law, rate = needs_suspend(case, setup), case.observation.model, case.predict_rate(setup)
    spread = UNKNOWN_SPREAD if law is None else law.log_width / NINE_IN_TEN
    here = case.observation.setup
    back = case.cost(here, case.rate) + case.change_cost(here, cycles=ends)
    total = 0.0
    for quantile in QUANTILES:
        there = rate * math.exp(spread * quantile)
        total += min(case.cost(setup, there), back + _trial_cost(case, setup, there))
    total = total / len(QUANTILES) + case.change_cost(setup, cycles=ends)
    return PsCandidate(setup, rate, total, ends)


def _trial_cost(case: PsDecisionInput, setup: ServerSetup, rate: float) -> float:
    """What is lost while windows show that the setup is worse than the present one."""
    seconds = min(case.policy.settle_windows * case.policy.window_seconds, case.seconds_left)
    at_home = case.cost_per_second(case.observation.setup) / case.rate
    return max(0.0, seconds * case.cost_per_second(setup) - seconds * rate * at_home)
