# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A Prometheus histogram as it was scraped: what came to it since, and its quantiles."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True, slots=True)
class Histogram:
    """Upper bounds, ascending, each with how many values are not above it."""

    counts: tuple[tuple[float, float], ...]

    @classmethod
    def read(cls, text: str, metric: str, /, **labels: str) -> Histogram:
        """The sum of the histograms of that name that have these labels."""
        found: dict[float, float] = {}
        pattern = re.compile(rf"^{metric}_bucket\{{(.*)\}} (\S+)$", re.MULTILINE)
        for told, count in pattern.findall(text):
            known = dict(re.findall(r'(\w+)="([^"]*)"', told))
            if labels.items() <= known.items():
                bound = float(known["le"])
                found[bound] = found.get(bound, 0.0) + float(count)
        return cls(tuple(sorted(found.items())))

    @property
    def total(self) -> float:
        """How many values there are."""
        return self.counts[-1][1] if self.counts else 0.0

    def since(self, before: Histogram) -> Histogram:
        """What came after ``before``."""
        old = dict(before.counts)
        return Histogram(tuple((bound, n - old.get(bound, 0.0)) for bound, n in self.counts))

    def quantile(self, share: float) -> float:
        """As Prometheus reckons it: values lie evenly within a bucket; 0 without any."""
        wanted = share * self.total
        low = below = 0.0
        for bound, count in self.counts:
            if count >= wanted and count > below:
                high = low if bound == float("inf") else bound
                return low + (high - low) * (wanted - below) / (count - below)
            low, below = bound, count
        return 0.0
