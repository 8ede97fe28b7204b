# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One job under each policy, on a table whose best sizes are known."""

from __future__ import annotations

import pytest

from benchmarks.scaling_bench import comparison
from rover_kf.scaling import decide as production
from rover_kf.simulation import policies
from rover_kf.simulation.job_simulation import JobScenario, run
from rover_kf.simulation.policies import POLICIES
from tests.support.simulated import step_tables

CASE = JobScenario(step_tables.table(), 64.0, 2.0, 1.0, 30.0)


def test_the_rule_is_productions():
    """The simulator has no copy of the rule."""
    assert policies.decide is production.decide


def test_oracle_pays_the_least_and_static_its_guess():
    """Without changes the cost is the size's price times the steps, to the last digit."""
    oracle = run(CASE, POLICIES["oracle"](CASE), seed=1)
    assert oracle.over_least == pytest.approx(1.0)
    assert (oracle.restarts, oracle.sizes) == (0, (CASE.best,))
    static = run(CASE, POLICIES["static"](CASE), seed=1)
    assert static.sizes == (4,)
    assert static.cost == pytest.approx(CASE.steps * CASE.step_seconds(4) * 6)
    assert oracle.seconds == pytest.approx(3600)


def test_a_change_costs_a_restart_at_the_new_size():
    """Two minutes at one replica, a restart, the rest at two: the account is exact."""

    class Once:
        def begin(self):
            return 1

        def target(self, seen, now):
            return 2 if now >= 120 else seen.replicas

        def changed(self, now):
            assert now == pytest.approx(120)

    found = run(CASE, Once(), seed=1)
    rest = CASE.steps - 120 / CASE.step_seconds(1)
    seconds = rest * CASE.step_seconds(2)
    assert found.cost == pytest.approx(120 * 3 + 30 * 4 + seconds * 4)
    assert (found.restarts, found.seconds) == (1, pytest.approx(150 + seconds))


def test_ours_is_ahead_of_each_that_guesses_or_watches_utilisation():
    """On jobs of two networks, fast and slow: nearer to the oracle on average than any other."""
    tables = [step_tables.table("fast"), step_tables.table("slow", network=0.3, speed=2.0)]
    jobs = comparison.cases(tables, 30.0, (2.0,))
    found = {name: comparison.single_jobs(name, jobs) for name in POLICIES if name != "pollux"}
    print({name: round(summary.mean, 3) for name, summary in found.items()}, len(jobs), "jobs")
    assert len(jobs) >= 16
    assert found["oracle"].mean == pytest.approx(1.0)
    assert found["rover"].mean < 1.06
    assert found["rover"].restarts <= 3
    for rival in ("static", "hpa", "dlrover"):
        assert found["rover"].mean < found[rival].mean


def test_pollux_like_policy_stays_within_twice_what_it_saw():
    """Its seven parameters are fitted; sizes go up by a factor of two at most."""
    case = JobScenario(CASE.table, 64.0, 8.0, 1.0, 30.0)
    found = run(case, POLICIES["pollux"](case), seed=1)
    assert found.restarts >= 2
    assert all(b <= 2 * a for a, b in zip(found.sizes, found.sizes[1:], strict=False))
