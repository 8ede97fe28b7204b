# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""All that was overcome, as a table and as JSON; pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from chaos.verdict import Cost


def markdown(costs: Iterable[Cost]) -> str:
    """The table of docs/chaos.md."""
    head = "| fault | told by | goes on from | every rank steps after | steps lost |"
    rows = [
        f"| {cost.name} | {', '.join(f'`{reason}`' for reason in cost.told) or 'nothing needed'} "
        f"| {_from(cost)} | {cost.seconds:.1f} s | {cost.steps_lost} |"
        for cost in costs
    ]
    return "\n".join([head, "| --- | --- | --- | ---: | ---: |", *rows])


def to_json(costs: Iterable[Cost]) -> dict[str, Any]:
    """For build/bench/chaos.json."""
    return {cost.name: dataclasses.asdict(cost) for cost in costs}


def _from(cost: Cost) -> str:
    return "where it was" if cost.resumed is None else f"the last sealed step, from {cost.source}"
