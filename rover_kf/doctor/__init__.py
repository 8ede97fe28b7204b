# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a cluster lacks for rover-kf, and how to mend it.

Each module is about one thing: what is looked at (``look``, the only requests), and what is said of
it (``judge``, pure). Nothing is created: what admission would say is asked by dry runs.
"""

from __future__ import annotations

from rover_kf.doctor.diagnose import Diagnosis, diagnose
from rover_kf.doctor.finding import Finding

__all__ = ["Diagnosis", "Finding", "diagnose"]
