# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What was overcome, as JSON for docs/failures.md: a run of a few faults renews only theirs."""

from __future__ import annotations

import datetime as dt
import json
import os
import pathlib

from chaos.scenarios import SCENARIOS, Scenario
from chaos.verdict import Cost


def keep(place: pathlib.Path, wish: str, scenario: Scenario, cost: Cost) -> None:
    """Write one, beside what was found of other faults.

    Args:
        place: the file.
        wish: which faults were asked for.
        scenario: whose promises were all kept.
        cost: of it.
    """
    known = json.loads(place.read_text()).get("faults", {}) if place.exists() else {}
    today = dt.datetime.now(dt.timezone.utc).date().isoformat()
    known[scenario.name] = {
        "noticed_by": scenario.noticed_by,
        "told": list(cost.told),
        "resumed": cost.resumed is not None,
        "source": cost.source,
        "seconds": round(cost.seconds, 1),
        "steps_lost": cost.steps_lost,
        "date": today,
        "run": f"--chaos {wish}",
        "conditions": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}",
    }
    faults = {one.name: known[one.name] for one in SCENARIOS if one.name in known}
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps({"faults": faults}, indent=1) + "\n")
