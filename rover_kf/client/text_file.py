# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A text written where a person wants it."""

from __future__ import annotations

import pathlib

from rover_kf import errors


def write(path: pathlib.Path, text: str) -> None:
    """Write a file, and make the folders above it.

    Raises:
        InputError: it cannot be, with the reason.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise errors.InputError(f"{path} cannot be written: {cause}") from cause
