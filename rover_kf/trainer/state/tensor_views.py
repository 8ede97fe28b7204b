# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A snapshot's bytes seen as tensors."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterable, Iterator, Mapping

import torch

from rover_kf.checkpoint.format.snapshot import PlacedTensor
from rover_kf.trainer.state.flatten import dtype_of


def tensor_views(
    buffer: mmap.mmap | torch.Tensor, placed: Mapping[str, PlacedTensor]
) -> Mapping[str, torch.Tensor]:
    """Tensors over a snapshot's bytes, by name; they keep the mapping alive."""
    found: dict[str, torch.Tensor] = {}
    # Nothing is to be known of how a view came to be, nor that a script was in inference mode: it
    # would be a tensor that can be written there alone.
    with torch.inference_mode(mode=False), torch.no_grad():
        whole = (
            buffer
            if isinstance(buffer, torch.Tensor)
            else torch.frombuffer(buffer, dtype=torch.uint8, count=len(buffer))
        )
        for name, run in itertools.groupby(placed.values(), key=lambda item: item.entry.dtype):
            found.update(_run(whole, dtype_of(name), list(run)))
    return found


def _run(
    whole: torch.Tensor, dtype: torch.dtype, run: list[PlacedTensor]
) -> Iterable[tuple[str, torch.Tensor]]:
    """Tensors of one type; thousands that follow one another are cut in one call."""
    begin, end = run[0].begin, run[-1].end
    follows = all(here.end == there.begin for here, there in itertools.pairwise(run))
    if len(run) == 1 or not follows or begin % dtype.itemsize or end == begin:
        return ((place.entry.name, _part(whole, dtype, place)) for place in run)
    return _cut(whole[begin:end].view(dtype), run)


def _cut(flat: torch.Tensor, run: list[PlacedTensor]) -> Iterator[tuple[str, torch.Tensor]]:
    width = flat.element_size()
    sizes = [(place.end - place.begin) // width for place in run]
    for place, part in zip(run, flat.split_with_sizes(sizes), strict=True):
        shape = place.entry.shape
        yield place.entry.name, part if len(shape) == 1 else part.view(shape)


def _part(whole: torch.Tensor, dtype: torch.dtype, item: PlacedTensor) -> torch.Tensor:
    if item.begin == item.end:
        return torch.empty(item.entry.shape, dtype=dtype)
    return whole[item.begin : item.end].view(dtype).view(item.entry.shape)
