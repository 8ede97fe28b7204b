# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How tensors lie in memory that do not lie row by row, as all of a file do.

An optimizer's moments lie as its parameters do (``channels_last``); torch's fused optimizers take
that for granted, and with moments in another order they train on with other values' moments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import torch

from rover_kf.checkpoint.format.snapshot import reading

KEY = "rover.strides"
"""Metadata: JSON of {name: [elements from one index to the next, of each dimension]}."""

Strides = tuple[int, ...]


def contiguous_strides(shape: Iterable[int]) -> Strides:
    """Of a tensor of that shape that lies row by row."""
    found = [1]
    for size in reversed(tuple(shape)):
        found.append(found[-1] * max(size, 1))
    return tuple(reversed(found[:-1]))


def stride_of(tensor: torch.Tensor) -> Strides | None:
    """Of a tensor without holes or overlaps that does not lie row by row; of others None."""
    strides = tensor.stride()
    return (
        None
        if strides == contiguous_strides(tensor.shape) or not _is_dense(tensor.shape, strides)
        else strides
    )


def to_text(strides: Mapping[str, Strides]) -> str:
    """As it stands in the metadata."""
    return json.dumps(strides, separators=(",", ":"))


def read(metadata: Mapping[str, str]) -> Mapping[str, Strides]:
    """Strides by the tensors' names; none in a snapshot of before they were kept.

    Raises:
        CorruptSnapshot: they cannot be read.
    """
    with reading("strides"):
        found = json.loads(metadata.get(KEY, "{}"))
        return {str(name): tuple(map(int, strides)) for name, strides in found.items()}


def empty(like: torch.Tensor, strides: Strides | None) -> torch.Tensor:
    """A tensor of the same shape and type that lies so, row by row if nothing else fits."""
    if strides is None or not _is_dense(like.shape, strides):
        return torch.empty_like(like)
    return torch.empty_strided(like.shape, strides, dtype=like.dtype)


def _is_dense(shape: Iterable[int], strides: Strides) -> bool:
    sizes = tuple(shape)
    if len(sizes) != len(strides) or min(strides, default=0) < 0 or 0 in sizes:
        return False
    expected = 1
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
