# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A snapshot's bytes seen as tensors."""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import torch

from rover_kf.checkpoint.snapshot import Placed
from rover_kf.trainer.state import dtype_of


def views(
    buffer: mmap.mmap | torch.Tensor, placed: Mapping[str, Placed]
) -> Mapping[str, torch.Tensor]:
    """Tensors over a snapshot's bytes, by name; they keep the mapping alive."""
    whole = buffer
    if not isinstance(whole, torch.Tensor):
        whole = torch.frombuffer(whole, dtype=torch.uint8)
    found: dict[str, torch.Tensor] = {}
    for name, place in placed.items():
        dtype, shape = dtype_of(place.entry.dtype), place.entry.shape
        if place.begin == place.end:
            found[name] = torch.empty(shape, dtype=dtype)
        else:
            found[name] = whole[place.begin : place.end].view(dtype).view(shape)
    return found
