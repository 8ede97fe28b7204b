# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""CRC-32C of two pieces together, from the CRC-32C of each: pieces can be summed side by side.

A checksum is a polynomial over GF(2); to put n bytes behind it is to multiply it by x to the 8n,
modulo the CRC's polynomial (as in zlib's crc32_combine, with Castagnoli's polynomial).
"""

from __future__ import annotations

import functools

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, bits reversed: the highest bit stands for x to the 0."""
_ONE = 1 << 31
_X = 1 << 30


def combine(first: int, second: int, length: int) -> int:
    """CRC-32C of two pieces.

    Args:
        first: CRC-32C of the first piece.
        second: CRC-32C of the second piece.
        length: of the second piece, bytes.
    """
    return _product(_power(8 * length), first) ^ second


def _product(left: int, right: int) -> int:
    found, bit = 0, _ONE
    while left:
        if left & bit:
            found ^= right
            left ^= bit
        bit >>= 1
        right = (right >> 1) ^ (_POLYNOMIAL if right & 1 else 0)
    return found


@functools.lru_cache(maxsize=16)
def _power(exponent: int) -> int:
    """X to that power."""
    found, square = _ONE, _X
    while exponent:
        if exponent & 1:
            found = _product(square, found)
        square = _product(square, square)
        exponent >>= 1
    return found
