# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities and durations as numbers, and bytes back as a quantity.

The one place where ``4Gi``, ``500m`` and ``2m`` are read; used by policy, sizing and validation.
"""

from __future__ import annotations

import decimal
import re

_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d+|[KMGTPE]i|[numkMGTPE]?)$")
_DURATION = re.compile(r"^(\d+\.?\d*|\.\d+)(ms|s|m|h|)$")
_SECONDS = {
    unit: decimal.Decimal(seconds)
    for unit, seconds in (("ms", "0.001"), ("", "1"), ("s", "1"), ("m", "60"), ("h", "3600"))
}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def parse(value: object) -> decimal.Decimal:
    """Read a quantity as Kubernetes writes it.

    Args:
        value: text such as ``"500m"``, ``"4Gi"``, ``"1e9"``, or a plain number.

    Returns:
        Its value in the base unit (cores, bytes).

    Raises:
        ValueError: it is no quantity.
    """
    is_number = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    match = _QUANTITY.match(str(value).strip()) if is_number else None
    if not match:
        raise ValueError(f"{value!r} is no quantity")
    number, suffix = decimal.Decimal(match[1]), match[2]
    if suffix in _BINARY:
        return number * decimal.Decimal(1024) ** _BINARY[suffix]
    if suffix in _DECIMAL:
        return number.scaleb(_DECIMAL[suffix])
    return number.scaleb(int(suffix[1:]))


def parse_bytes(value: object) -> int:
    """Read a quantity of memory, in bytes, rounded up.

    Raises:
        ValueError: it is no quantity.
    """
    return int(parse(value).to_integral_value(rounding=decimal.ROUND_CEILING))


def parse_seconds(value: object) -> float:
    """Read a duration: plain seconds (``60``) or with a unit (``500ms``, ``5s``, ``2m``, ``1h``).

    Raises:
        ValueError: it is no duration.
    """
    match = None if isinstance(value, bool) else _DURATION.match(str(value).strip())
    if not match:
        raise ValueError(f"{value!r} is no duration")
    return float(decimal.Decimal(match[1]) * _SECONDS[match[2]])


def format_bytes(count: int) -> str:
    """Write bytes as the shortest exact quantity: ``format_bytes(2**30)`` is ``"1Gi"``."""
    for suffix, power in sorted(_BINARY.items(), key=lambda item: -item[1]):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{suffix}"
    return str(count)
