# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a script measured of a state (accuracy, loss): on its way from save() to the manifest.

It stands in the snapshot's metadata, so that it is there whoever persists the slot, and whenever.
Standard library only, since it enters the user's image.
"""

from __future__ import annotations

import json
import math
import numbers as kinds
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.checkpoint.format.snapshot import Snapshot

METRICS_KEY = "rover.metrics"
"""Metadata: JSON of {metric: number}; not there if nothing was measured."""


def to_metadata(metrics: Mapping[str, float] | None) -> Mapping[str, str]:
    """Metadata to be added to a snapshot's.

    Args:
        metrics: numbers by name. One that is not finite counts as not measured: a loss that has
            become nan must not end the training that it is told of.

    Raises:
        InputError: a value is no number.
    """
    finite: dict[str, float] = {}
    for name, value in (metrics or {}).items():
        try:
            number = float(value)
        except (TypeError, ValueError) as cause:
            message = f"metrics[{name!r}] is {value!r}; a number is needed"
            raise errors.InputError(message) from cause
        if math.isfinite(number):
            finite[str(name)] = number
    return {METRICS_KEY: json.dumps(finite, sort_keys=True)} if finite else {}


def numeric_only(values: Mapping[str, object] | None) -> dict[str, float]:
    """What a framework has measured, without what is no number: nobody chose to tell that."""
    return {
        str(name): float(value)
        for name, value in (values or {}).items()
        if isinstance(value, kinds.Real) and not isinstance(value, bool)
    }


def read_metrics(snapshot: Snapshot) -> dict[str, float]:
    """What was measured of a snapshot's state.

    Raises:
        CorruptSnapshot: it cannot be read.
    """
    try:
        parsed = json.loads(snapshot.metadata.get(METRICS_KEY, "{}"))
        return {str(name): float(value) for name, value in parsed.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as cause:
        raise errors.CorruptSnapshot(f"a snapshot's metrics cannot be read: {cause!r}") from cause
