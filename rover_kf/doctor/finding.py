# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One thing that was looked at, and what is to be done about it."""

from __future__ import annotations

import dataclasses
from typing import Literal

Verdict = Literal["good", "warning", "broken", "unknown"]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one thing."""

    check: str
    """Its name: one word, or several with hyphens."""
    verdict: Verdict
    """unknown: the caller may not look at it."""
    message: str
    fix: str = ""
    """What to do; empty where nothing is to be done."""


def unknown(check: str, refusal: str, right: str) -> Finding:
    """Return the finding where the caller lacks a right, such as ``list nodes``."""
    mend = f"ask somebody who may {right} to run rover-kf doctor"
    return Finding(check, "unknown", f"could not be looked at: {refusal}", mend)
