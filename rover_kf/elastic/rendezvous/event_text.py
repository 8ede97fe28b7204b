# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What ended a round, short enough for the Event of another thing."""

from __future__ import annotations

_FIRST, _LAST = 80, 220
"""Characters: who failed stands at the begin, the error at the end of its traceback."""


def truncate(reason: str) -> str:
    """In one line; of a long one its begin and its end."""
    said = " ".join(reason.split())
    if len(said) <= _FIRST + _LAST:
        return said
    return f"{said[:_FIRST].rstrip()} … {said[-_LAST:].lstrip()}"
