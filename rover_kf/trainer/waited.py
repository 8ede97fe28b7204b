# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How long a training loop waits for its data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


class Waited:
    """Of one loader; what is fetched beside the loop costs it nothing."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def within(self, batches: Iterator[T]) -> Iterator[T]:
        """The same batches, each one's wait counted."""
        begun = time.perf_counter()
        for batch in batches:
            self._seconds += time.perf_counter() - begun
            yield batch
            begun = time.perf_counter()

    def take(self) -> float:
        """Seconds since it was asked last."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
