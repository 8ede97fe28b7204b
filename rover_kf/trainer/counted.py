# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of steps, which go up: of what is saved, a restore takes the highest."""

from __future__ import annotations

import operator
from typing import Any

from rover_kf import errors


def counted(step: Any, last: int) -> int:
    """The number of a step that may be saved.

    Args:
        step: as the script tells it; scalars of NumPy and torch count if they are whole.
        last: that this process has saved or restored; 0: none.

    Raises:
        InputError: it is no whole number, below 1 or below the last one; the same again is another
            try.
    """
    try:
        number = operator.index(step)
    except (TypeError, RuntimeError, ValueError) as cause:
        raise errors.InputError(f"step is {step!r}; a whole number is needed") from cause
    if number < 1:
        raise errors.InputError(
            f"step is {number}; count steps from 1: 0 is what restore returns where nothing was "
            "saved"
        )
    if number < last:
        raise errors.InputError(
            f"step {number} after step {last}, which this process has saved or restored: a restore "
            "takes the highest number, so what is saved below it would be lost; count on from "
            f"{last + 1}, also where the script goes back to earlier weights"
        )
    return number
