# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities and durations as numbers, and amounts back as quantities.

The one place where ``4Gi``, ``500m`` and ``2m`` are read; used by policy, sizing and validation.
"""

from __future__ import annotations

import decimal
import re

_QUANTITY = re.compile(
    r"^([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([eE][+-]?[0-9]{1,3}|[KMGTPE]i|[numkMGTPE]?)$"
)
_DURATION = re.compile(r"^([0-9]+\.?[0-9]*|\.[0-9]+)(ms|s|m|h|)$")
MAX_QUANTITY = decimal.Decimal(2**63 - 1)
"""Kubernetes' own bound of a quantity; a duration may have as many seconds."""
_LONGEST = 64
"""Characters: what is longer is no number that anybody meant."""
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
    match = _matched(_QUANTITY, value)
    if not match:
        raise ValueError(f"{str(value)[:_LONGEST]!r} is no quantity")
    number, suffix = decimal.Decimal(match[1]), match[2]
    if suffix in _BINARY:
        found = number * decimal.Decimal(1024) ** _BINARY[suffix]
    elif suffix in _DECIMAL:
        found = number.scaleb(_DECIMAL[suffix])
    else:
        found = number.scaleb(int(suffix[1:]))
    if abs(found) > MAX_QUANTITY:
        raise ValueError(f"{str(value)[:_LONGEST]!r} is above 2^63 - 1")
    return found


def parse_bytes(value: object) -> int:
    """Read a quantity of memory, in bytes, rounded up.

    Raises:
        ValueError: it is no quantity.
    """
    return int(parse(value).to_integral_value(rounding=decimal.ROUND_CEILING))


def parse_cores(value: object) -> float:
    """Read a quantity of cores.

    Raises:
        ValueError: it is no quantity.
    """
    return float(parse(value))


def parse_millicores(value: object) -> int:
    """Read a quantity of cores, in thousandths, rounded up.

    Raises:
        ValueError: it is no quantity.
    """
    return int((parse(value) * 1000).to_integral_value(rounding=decimal.ROUND_CEILING))


def parse_seconds(value: object) -> float:
    """Read a duration: plain seconds (``60``) or with a unit (``500ms``, ``5s``, ``2m``, ``1h``).

    Raises:
        ValueError: it is no duration.
    """
    match = _matched(_DURATION, value)
    if not match:
        raise ValueError(f"{str(value)[:_LONGEST]!r} is no duration")
    found = decimal.Decimal(match[1]) * _SECONDS[match[2]]
    if found > MAX_QUANTITY:
        raise ValueError(f"{str(value)[:_LONGEST]!r} is above 2^63 - 1 seconds")
    return float(found)


def _matched(pattern: re.Pattern[str], value: object) -> re.Match[str] | None:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    text = str(value).strip()
    return pattern.match(text) if len(text) <= _LONGEST else None


def format_bytes(count: int) -> str:
    """Write bytes as the shortest exact quantity: ``format_bytes(2**30)`` is ``"1Gi"``."""
    for suffix, power in sorted(_BINARY.items(), key=lambda item: -item[1]):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{suffix}"
    return str(count)


def format_millicores(count: int) -> str:
    """Write thousandths of a core: ``format_millicores(1500)`` is ``"1500m"``, of 2000 ``"2"``."""
    return f"{count}m" if count % 1000 else str(count // 1000)
