# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them; what was not measured says so and is never a nought."""

from __future__ import annotations

import datetime as dt

UNKNOWN = "not measured"
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def seconds(value: float | None) -> str:
    """A duration: ``41 ms``, ``2.50 s``, ``3 min 20 s``, ``2 h 05 min``, ``3 d 4 h``."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < MINUTE:
        return f"{value:.3g} s"
    if value < HOUR:
        return f"{value // MINUTE:.0f} min {value % MINUTE:02.0f} s"
    if value < DAY:
        return f"{value // HOUR:.0f} h {value % HOUR // MINUTE:02.0f} min"
    return f"{value // DAY:.0f} d {value % DAY // HOUR:.0f} h"


def measured_seconds(value: float) -> str:
    """A duration that is 0 in a record where it was never measured."""
    return seconds(value) if value > 0 else UNKNOWN


def size(value: float | None) -> str:
    """Bytes, or not measured where there are none: ``12.3 MiB``."""
    if not value:
        return UNKNOWN
    for unit, power in (("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if value >= 1024**power:
            return f"{value / 1024**power:.1f} {unit}"
    return f"{value:.0f} B"


def number(value: float | None, unit: str = "") -> str:
    """A number with at most four figures."""
    if value is None:
        return UNKNOWN
    shown = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004 - four figures
    return f"{shown} {unit}".rstrip()


def share(value: float) -> str:
    """A fraction as per cent."""
    return f"{value:.1%}"


def instant(timestamp: float) -> str:
    """A point in time, UTC."""
    if not timestamp:
        return UNKNOWN
    moment = dt.datetime.fromtimestamp(timestamp, tz=dt.timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def since(timestamp: float, start: float) -> str:
    """A point in time within the run: ``+12.3 s``."""
    return f"+{seconds(max(0.0, timestamp - start))}" if timestamp else UNKNOWN


def quantity(value: float, unit: str) -> str:
    """A recommended number in its unit."""
    return size(value) if unit == "bytes" else number(value, unit)
