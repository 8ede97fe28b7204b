# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""When ranks tell each other their speed, and which steps are cut by what they have told; pure.

All ranks count the same steps, so all come to the same answers without asking each other.
"""

from __future__ import annotations

import dataclasses

_FIRST = (1, 2, 4, 8)
_EVERY = 16
_GAIN, _FIRST_GAIN = 0.03, 0.01
_SETTLED = 32
"""Steps until which the smaller gain is enough: speeds of the first few are of little time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cadence:
    """Of one iteration over an epoch; steps count from its begin."""

    ahead: int
    """Parts that data loader workers fetch before they are asked for."""

    def exchanges(self, ended: int) -> bool:
        """Whether ranks tell their speed after so many steps."""
        return ended in _FIRST or (ended > 0 and ended % _EVERY == 0)

    def counts_from(self, ended: int) -> int:
        """The first step that is cut by what was told after so many.

        No worker has been given it by then. At first it is the very next such step, for which all
        wait until the last one has told; later the one after it, and nobody waits.
        """
        return ended + self.ahead + (ended > _FIRST[-1])

    def gain(self, ended: int) -> float:
        """Of a step's time, for which a cut by what was told after so many steps is worth it.

        Another batch size has its own price; a cut by the first speeds, of few steps, is worth
        less.
        """
        return _FIRST_GAIN if ended <= _SETTLED else _GAIN

    def next_change(self, step: int) -> int:
        """The first later step that may be cut by something else."""
        later = step + 1
        while not self._changes(later):
            later += 1
        return later

    def _changes(self, step: int) -> bool:
        last = step - self.ahead
        return any(self.exchanges(n) and self.counts_from(n) == step for n in (last - 1, last))

    def known_until(self, ended: int) -> int:
        """The last step whose cut is known when so many have ended."""
        return ended + self.ahead
