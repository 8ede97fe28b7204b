# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether checkpoints have the metric that policy keeps the best by; pure."""

from __future__ import annotations

from collections.abc import Mapping

from rover_kf.checkpoint.retention import Best


class Unmeasured:
    """One a coordinator.

    Args:
        best: what policy asks for; None: nothing.
        keep: newest checkpoints that stay: so many may lack the metric before one is removed.
    """

    def __init__(self, best: Best | None, keep: int) -> None:
        self._best, self._keep = best, keep
        self._lacking = 0
        self._is_settled = best is None
        """The metric was seen, or it was told that it is not."""

    def objection(self, step: int, metrics: Mapping[str, float]) -> str:
        """What to tell of a checkpoint that is committed; empty: nothing.

        A script that measures now and then has checkpoints without any metric: they say nothing.
        """
        if self._is_settled or self._best is None or not metrics:
            return ""
        self._is_settled = self._best.metric in metrics
        self._lacking += not self._is_settled
        if self._is_settled or self._lacking <= self._keep:
            return ""
        self._is_settled = True
        return (
            f"checkpoint.keep-best is {self._best}, and step {step} has no {self._best.metric!r} "
            f"but {sorted(metrics)}: none counts as one of the best, and older ones are removed; "
            "name one of these there, or give that metric with the state"
        )
