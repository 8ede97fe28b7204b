# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which nodes a check blames, whatever they measure: the bad ones, and never a good one."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api.preflight import FAULTY, OK, SLOW, UNCLEAR, Measured, PairMeasured, Preflight
from rover_kf.elastic.preflight import fleet
from rover_kf.elastic.preflight.evidence import Evidence
from rover_kf.elastic.preflight.fleet import Fleet
from rover_kf.elastic.preflight.judge import judge
from rover_kf.elastic.preflight.pairing import MOST_ROUNDS, next_pairs

MATMUL, REDUCE = 0.01, 0.02
KINDS = ("cannot compute", "computes slowly", "no network", "slow network")
BAD_NETWORK = KINDS[2:]


@dataclasses.dataclass
class Place:
    """Nodes, some of them bad, whose figures scatter by up to a fifth."""

    bad: dict[str, str]
    seed: int = 0

    def __post_init__(self):
        self.chance = random.Random(self.seed)

    def alone(self, node):
        kind = self.bad.get(node)
        if kind == "cannot compute":
            return Measured(f"pod-{node}", node, "cpu", None, "wrong product")
        factor = 4.0 if kind == "computes slowly" else 1.0
        return Measured(f"pod-{node}", node, "cpu", MATMUL * factor * self._scatter())

    def together(self, one, other):
        kinds = {self.bad.get(one), self.bad.get(other)}
        pods = (f"pod-{one}", f"pod-{other}")
        if "no network" in kinds:
            return PairMeasured(*pods, None, "no end within 10 s")
        factor = 6.0 if kinds & {"slow network", "computes slowly"} else 1.0
        return PairMeasured(*pods, REDUCE * factor * self._scatter())

    def check(self, nodes, known=None):
        """All rounds; the check, how many rounds it took, and what the pods met."""
        pods = tuple(self.alone(node) for node in nodes)
        pairs, rounds = (), 0
        while made := next_pairs(Evidence(pods, pairs), rounds):
            met = [name for pair in made for name in pair]
            assert len(met) == len(set(met))
            rounds += 1
            pairs += tuple(self.together(*(name[4:] for name in pair)) for pair in made)
        verdicts = judge(Evidence(pods, pairs, known or Fleet()))
        return Preflight(1000.0, 1.0, pods, pairs, verdicts), rounds

    def _scatter(self):
        return self.chance.uniform(1.0, 1.2)


def blamed(check):
    return {one.node for one in check.verdicts if one.verdict in (SLOW, FAULTY)}


nodes_of = st.integers(2, 33).map(lambda count: [f"n{index}" for index in range(count)])
seeds = st.integers(0, 1 << 16)


@given(nodes=nodes_of, seed=seeds)
def test_where_all_is_well_nobody_is_blamed(nodes, seed):
    """And it takes one round of an even number of pods, and at most three of any."""
    check, rounds = Place({}, seed).check(nodes)
    assert {one.verdict for one in check.verdicts} == {OK}
    assert rounds <= (1 if len(nodes) == 2 else 3 if len(nodes) == 3 else 2)


@given(nodes=nodes_of, data=st.data(), kind=st.sampled_from(KINDS), seed=seeds)
def test_one_bad_node_of_three_or_more_is_found(nodes, data, kind, seed):
    """Whatever is wrong with it, without any history; of two, what it does by itself is enough."""
    bad = data.draw(st.sampled_from(nodes))
    check, rounds = Place({bad: kind}, seed).check(nodes)
    if len(nodes) > 2 or kind not in BAD_NETWORK:
        assert blamed(check) == {bad}
        assert all(one.reason for one in check.verdicts if one.node == bad)
    elif kind == "no network":
        assert {one.verdict for one in check.verdicts} == {UNCLEAR}
    assert rounds <= 3


@given(data=st.data(), kind=st.sampled_from(KINDS), count=st.integers(2, 3), seed=seeds)
def test_one_bad_node_of_two_is_found_with_history(data, kind, count, seed):
    """Checks of other jobs, one of them of the bad node with yet another: it is named, also where
    nothing that is measured now tells which of the two it is."""
    nodes = [f"n{index}" for index in range(count)]
    bad = data.draw(st.sampled_from(nodes))
    place = Place({bad: kind}, seed)
    others = [[f"m{index}" for index in range(start, start + 8)] for start in (0, 4)]
    earlier = [place.check(those)[0] for those in (*others, [bad, "m1"], nodes)]
    check, _ = place.check(nodes, fleet.gather(earlier, 1500.0))
    assert blamed(check) == {bad}


@given(nodes=nodes_of, data=st.data(), seed=seeds)
@settings(max_examples=300)
def test_no_good_node_is_blamed(nodes, data, seed):
    """However many others have no network, and whichever they are."""
    bad = data.draw(st.sets(st.sampled_from(nodes)))
    check, rounds = Place(dict.fromkeys(bad, "no network"), seed).check(nodes)
    assert blamed(check) <= bad
    assert rounds <= MOST_ROUNDS


@given(nodes=nodes_of, data=st.data(), seed=seeds)
def test_what_is_bad_everywhere_is_nobodys_fault(nodes, data, seed):
    """No pair works (a wrong interface, a firewall), or all are slower than other jobs: unclear."""
    kind = data.draw(st.sampled_from(("no network", "computes slowly")))
    usual = Fleet({"cpu": MATMUL}, {"cpu": REDUCE})
    check, _ = Place(dict.fromkeys(nodes, kind), seed).check(nodes, usual)
    assert {one.verdict for one in check.verdicts} == {UNCLEAR}


def test_old_pairs_and_few_figures_say_nothing():
    """A pair of the day before yesterday is forgotten; two figures make nothing usual."""
    check, _ = Place({}).check(["a", "b"])
    known = fleet.gather([check], check.at + 2 * fleet.FRESH_SECONDS)
    assert known == Fleet()
