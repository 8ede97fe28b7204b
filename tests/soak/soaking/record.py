# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a soak has shown, as JSON and as a table; pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from soaking import growth, schedule
from soaking.growth import Sample
from soaking.recovery import Recovery


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One soak."""

    minutes: float
    """Asked for."""
    ran_minutes: float
    """From the job's submission to its last step."""
    seed: int
    steps: int
    goodput: float
    """Share of that time in which steps were new."""
    recoveries: tuple[Recovery, ...]
    samples: tuple[Sample, ...]
    result: dict[str, float]
    """What the training script printed last."""

    def to_json(self) -> dict[str, Any]:
        """Plain data; seconds, steps and MiB rounded."""
        # While a newcomer starts, the others train: a change of size is no recovery.
        broke = [item for item in self.recoveries if item.struck.kind not in schedule.RESIZES]
        worst = max(broke, key=lambda item: item.struck.seconds, default=None)
        return {
            "minutes": self.minutes,
            "ran_minutes": round(self.ran_minutes, 2),
            "seed": self.seed,
            "steps": self.steps,
            "accuracy": self.result.get("accuracy"),
            "goodput": round(self.goodput, 4),
            "faults": by_kind(self.recoveries),
            "longest_recovery": worst
            and {"fault": str(worst.struck), "seconds": round(worst.struck.seconds, 2)},
            "rss_growth": {role: self._growth(role, "rss_mib") for role in self._roles()},
            "descriptors_growth": {
                role: self._growth(role, "descriptors") for role in self._roles()
            },
        }

    def table(self) -> str:
        """The same for people."""
        found = self.to_json()
        lines = [
            f"{'fault':14} {'count':>5} {'median s':>9} {'worst s':>8} {'steps lost':>10}  from"
        ]
        for kind, row in found["faults"].items():
            lines.append(
                f"{kind:14} {row['count']:5} {row['median_seconds']:9.2f} "
                f"{row['worst_seconds']:8.2f} {row['steps_lost_worst']:10}  {row['sources']}"
            )
        for role, item in found["rss_growth"].items():
            descriptors = found["descriptors_growth"][role]
            lines.append(
                f"{role:9} {item['first']:6.1f} MiB, then {item['second']:6.1f}; descriptors "
                f"{descriptors['first']:g}, then {descriptors['second']:g}"
            )
        lines.append(
            f"seed {self.seed}: {self.steps} steps in {self.ran_minutes:.1f} minutes, goodput "
            f"{self.goodput:.3f}, longest recovery {found['longest_recovery']}"
        )
        return "\n".join(lines)

    def _roles(self) -> list[str]:
        return sorted({item.role for item in self.samples})

    def _growth(self, role: str, measure: str) -> dict[str, float | None]:
        halves = growth.growth(self.samples, role, measure)
        found = {"first": round(halves.first, 1), "second": round(halves.second, 1)}
        rate = growth.mib_per_hour(self.samples, role) if measure == "rss_mib" else None
        return found if rate is None else {**found, "mib_per_hour": round(rate, 1)}


def by_kind(recoveries: Sequence[Recovery]) -> dict[str, dict[str, Any]]:
    """Count, seconds, steps lost and sources of each kind of fault that came."""
    found = {}
    for kind in dict.fromkeys(sorted(item.struck.kind for item in recoveries)):
        mine = [item for item in recoveries if item.struck.kind == kind]
        seconds = [item.struck.seconds for item in mine]
        found[kind] = {
            "count": len(mine),
            "median_seconds": round(statistics.median(seconds), 2),
            "worst_seconds": round(max(seconds), 2),
            "steps_lost_worst": max(item.steps_lost for item in mine),
            "sources": "+".join(sorted(set().union(*(item.sources for item in mine)))),
        }
    return found
