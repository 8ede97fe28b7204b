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
    """Return [columns] weights, none below 0, for a [rows, columns] design and [rows] target."""
    from scipy import optimize  # noqa: PLC0415 - see above

    weights: Array = optimize.nnls(design, target)[0]
    return weights
