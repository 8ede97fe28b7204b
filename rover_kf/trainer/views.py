# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A snapshot's bytes seen as tensors."""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import torch

from rover_kf.checkpoint.snapshot import Placed
from rover_kf.trainer.state import DTYPES, dtype_of


def views(
    buffer: mmap.mmap | torch.Tensor, placed: Mapping[str, Placed]
) -> Mapping[str, torch.Tensor]:
    """Tensors over a snapshot's bytes, by name; they keep the mapping alive."""
    if isinstance(buffer, torch.Tensor):
        return {name: _part(buffer, place) for name, place in placed.items()}
    return {name: _over(buffer, place) for name, place in placed.items()}


def _over(buffer: mmap.mmap, place: Placed) -> torch.Tensor:
    dtype, shape = dtype_of(place.entry.dtype), place.entry.shape
    if place.begin == place.end:
        return torch.empty(shape, dtype=dtype)
    if dtype in DTYPES:
        count = (place.end - place.begin) // place.entry.width
        flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=place.begin)
        return flat if len(shape) == 1 else flat.view(shape)
    count = place.end - place.begin
    whole = torch.frombuffer(buffer, dtype=torch.uint8, count=count, offset=place.begin)
    return whole.view(dtype).view(shape)


def _part(whole: torch.Tensor, place: Placed) -> torch.Tensor:
    dtype, shape = dtype_of(place.entry.dtype), place.entry.shape
    if place.begin == place.end:
        return torch.empty(shape, dtype=dtype)
    return whole[place.begin : place.end].view(dtype).view(shape)
