# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How large a state's tensors are: of each parameter its value, two moments, a step counter."""

from __future__ import annotations

_TENSORS_A_PARAMETER = 4
_LARGE_A_PARAMETER = 3
_FLOAT_BYTES = 4
_ROUND_TO = 256
"""Elements; layers' sizes are multiples of such numbers."""


def parameters(tensors: int) -> int:
    """How many there are in a state of so many tensors."""
    return tensors // _TENSORS_A_PARAMETER


def elements(mebibytes: int, tensors: int) -> int:
    """Of each parameter."""
    size = (mebibytes << 20) // (_LARGE_A_PARAMETER * _FLOAT_BYTES * parameters(tensors))
    return max(size // _ROUND_TO, 1) * _ROUND_TO


def state_bytes(mebibytes: int, tensors: int) -> int:
    """Of the whole state, but for the counters."""
    large = _LARGE_A_PARAMETER * parameters(tensors)
    return large * _FLOAT_BYTES * elements(mebibytes, tensors)
