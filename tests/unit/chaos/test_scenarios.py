# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which faults an option asks for, and that the matrix knows of no others."""

from __future__ import annotations

import json
import pathlib

from chaos.scenarios import SCENARIOS, chosen

DOCS = pathlib.Path(__file__).parents[3] / "docs"


def test_chance_leaves_none_out_and_comes_again():
    """All of them, in an order that its seed gives."""
    orders = [[one.name for one in chosen("random", seed)] for seed in (7, 7, 8)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == sorted(one.name for one in SCENARIOS)


def test_patterns_keep_the_order():
    """Those whose names match, as they are listed; some are few, all are all."""
    found = [one.name for one in chosen("^first pod|clock", 0)]
    assert found == [
        one.name for one in SCENARIOS if "clock" in one.name or one.name.startswith("first pod")
    ]
    assert 0 < len(chosen("some", 0)) < len(chosen("all", 0)) == len(SCENARIOS)


def test_the_matrix_is_of_these_faults():
    """What was seen of a fault that there is no more says nothing."""
    seen = json.loads((DOCS / "chaos.json").read_text())["faults"]
    noticed = {one.name: one.noticed_by for one in SCENARIOS}
    assert {name: fault["noticed_by"] for name, fault in seen.items()} == {
        name: noticed[name] for name in seen
    }
