# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A random order of 0 … size - 1 of which any part is computed where it is needed.

An order of 10^12 takes no memory, and a resumed epoch reads nothing first. It is a generalized
Feistel network over pairs of numbers, walked until it lands inside (J. Black, P. Rogaway: Ciphers
with Arbitrary Finite Domains, 2002). Numbers stay below 2^63, for integers and tensors of 64 bits
alike.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, TypeVar

from rover_kf import errors

Numbers = TypeVar("Numbers")
"""An int, or whatever computes like one element by element (a tensor of int64)."""

MAX_SIZE = 1 << 62
_ROUNDS = 6
_LOW = 0xFFFFFFFF
_FIRST, _SECOND = 0x7FEB352D, 0x31848BAB
"""Odd and below 2^31: a product with 32 bits does not reach the sign."""


class Permutation:
    """A random order by its size and key, the same on every machine.

    The key are numbers: the job's seed, the epoch, and what is ordered in it.

    Raises:
        InputError: a size that there is no order of.
    """

    def __init__(self, size: int, *key: int) -> None:
        if not 0 < size <= MAX_SIZE:
            raise errors.InputError(f"an order of {size} samples: 1 to {MAX_SIZE} are possible")
        self.size = size
        self._left = math.isqrt(size - 1) + 1
        self._right = -(-size // self._left)
        text = "/".join(map(str, key))
        hashed = hashlib.blake2b(text.encode(), digest_size=4 * _ROUNDS).digest()
        self._keys = [int.from_bytes(hashed[4 * r : 4 * r + 4], "little") for r in range(_ROUNDS)]

    def value_at(self, position: int) -> int:
        """The number that stands at a position.

        Raises:
            InputError: there is no such position.
        """
        if not 0 <= position < self.size:
            raise errors.InputError(f"position {position} of an order of {self.size} samples")
        found = self.apply_network(position)
        while found >= self.size:
            found = self.apply_network(found)
        return found

    def values_at(self, positions: Numbers) -> Numbers:
        """Return the numbers at valid positions: an array of NumPy, or a tensor, of int64."""
        found: Any = self.apply_network(positions)
        while bool((outside := found >= self.size).any()):
            found[outside] = self.apply_network(found[outside])
        values: Numbers = found
        return values

    def apply_network(self, number: Numbers) -> Numbers:
        """One walk through the network; what is not below ``size`` has to go through again."""
        left: Any = number // self._right  # type: ignore[operator]
        right: Any = number - left * self._right
        for turn, key in enumerate(self._keys):
            if turn % 2:
                right += _mixed(left, key)
                right = _remainder(right, self._right)
            else:
                left += _mixed(right, key)
                left = _remainder(left, self._left)
        left *= self._right
        left += right
        found: Numbers = left
        return found


def _remainder(number: Any, modulus: int) -> Any:
    """Reduce numbers below 2^33 by a modulus of at most 2^31, tensors of torch in place.

    Tensors are multiplied by the reciprocal: processors divide integers one by one, some of them
    ten times as slowly. The half keeps quotients further from whole numbers than rounding errs.
    """
    if not hasattr(number, "double"):  # an int, or an array of NumPy
        return number % modulus
    quotient = number.double().add_(0.5).mul_(1 / modulus).long()
    return number.sub_(quotient, alpha=modulus)


def _mixed(number: Numbers, key: int) -> Numbers:
    """32 bits that depend on all bits of the number (below 2^32) and of the key."""
    mixed: Any = number ^ key  # type: ignore[operator]
    # From here on in place, where numbers are tensors.
    mixed ^= mixed >> 16
    mixed *= _FIRST
    mixed &= _LOW
    mixed ^= mixed >> 15
    mixed *= _SECOND
    mixed &= _LOW
    mixed ^= mixed >> 16
    found: Numbers = mixed
    return found
