# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Two tensors' bytes compared, element by element; pure, and without torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Bits = np.ndarray[Any, np.dtype[Any]]

_BLOCK = 1 << 20
"""Elements that are looked at together."""


@dataclasses.dataclass(frozen=True, slots=True)
class TensorComparison:
    """How two tensors of one type and shape differ."""

    elements: int
    differing: int
    """Elements that are not equal bit by bit."""
    max_difference: float | None
    """Largest absolute difference; None: no difference is a finite number, or the type is not
    known."""
    not_finite: int
    """Differing elements of which one is infinite or not a number."""


def _float8_e4m3fn(bits: Bits) -> Bits:
    exponent, mantissa = (bits >> 3) & 15, (bits & 7).astype(np.float64)
    normal = np.ldexp(1 + mantissa / 8, exponent.astype(np.int32) - 7)
    found = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    found = np.where(bits & 127 == 127, np.nan, found)  # noqa: PLR2004 - all ones
    return np.where(bits >> 7 == 1, -found, found)


_NUMBERS: Mapping[str, Callable[[Bits], Bits]] = {
    "BOOL": lambda bits: bits,
    "U8": lambda bits: bits,
    "U16": lambda bits: bits,
    "U32": lambda bits: bits,
    "U64": lambda bits: bits,
    "I8": lambda bits: bits.view(np.int8),
    "I16": lambda bits: bits.view(np.int16),
    "I32": lambda bits: bits.view(np.int32),
    "I64": lambda bits: bits.view(np.int64),
    "F16": lambda bits: bits.view(np.float16),
    "F32": lambda bits: bits.view(np.float32),
    "F64": lambda bits: bits.view(np.float64),
    "BF16": lambda bits: (bits.astype(np.uint32) << 16).view(np.float32),
    "F8_E5M2": lambda bits: (bits.astype(np.uint16) << 8).view(np.float16),
    "F8_E4M3": _float8_e4m3fn,
    "C64": lambda bits: bits.view(np.complex64),
    "complex128": lambda rows: rows.view(np.complex128).reshape(-1),
}
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def compare(a: memoryview, b: memoryview, dtype: str, width: int) -> TensorComparison:
    """Compare the bytes of two tensors.

    Args:
        a: one's, row by row.
        b: the other's, as many.
        dtype: of both, as a snapshot names it; of a type without a known meaning only bits count.
        width: bytes an element.
    """
    step = _BLOCK * width
    elements, differing, not_finite = len(a) // width, 0, 0
    largest: float | None = None
    for begin in range(0, len(a), step):
        left, right = _differing(a[begin : begin + step], b[begin : begin + step], width)
        differing += len(left)
        numbers = _NUMBERS.get(dtype)
        if not len(left) or numbers is None:
            continue
        distance = _distance(numbers(left), numbers(right))
        finite = distance[np.isfinite(distance)]
        not_finite += len(distance) - len(finite)
        if len(finite):
            largest = max(largest or 0.0, float(finite.max()))
    return TensorComparison(elements, differing, largest, not_finite)


def _differing(a: memoryview, b: memoryview, width: int) -> tuple[Bits, Bits]:
    """The elements that differ, as bits; of other widths as rows of bytes."""
    if width in _BITS:
        left, right = (np.frombuffer(data, _BITS[width]) for data in (a, b))
        there = left != right
    else:
        left, right = (np.frombuffer(data, np.uint8).reshape(-1, width) for data in (a, b))
        there = (left != right).any(axis=1)
    return left[there], right[there]


def _distance(a: Bits, b: Bits) -> Bits:
    distance: Bits
    if a.dtype.kind in "iu":
        # Exact, where a difference of the type itself could overflow.
        high, low = np.maximum(a, b), np.minimum(a, b)
        unsigned = np.dtype(f"u{a.dtype.itemsize}")
        distance = (high.view(unsigned) - low.view(unsigned)).astype(np.float64)
        return distance
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(a.astype(wide) - b.astype(wide))
    return distance
