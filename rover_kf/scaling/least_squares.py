# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Least squares without negative weights; scipy's solver is loaded when the first law is fitted.

It takes half a second of a core, and most commands, and a controller that starts, fit none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def solve(design: Array, target: Array) -> Array:
    """The weights, none below 0, whose sum of the design's columns is next to the target.

    Args:
        design: [rows, columns].
        target: [rows].

    Returns:
        [columns].
    """
    from scipy import optimize  # noqa: PLC0415 - see above

    weights: Array = optimize.nnls(design, target)[0]
    return weights
