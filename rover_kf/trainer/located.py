# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where a state's tensors are: as objects, and with their bytes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable
from typing import TypeAlias

import torch

Addresses: TypeAlias = list[int]
"""Where tensors have their bytes, in their order."""


class Unlocated(Exception):
    """A tensor has no bytes of its own; it is sparse."""


@dataclasses.dataclass(frozen=True, slots=True)
class Located:
    """Some tensors' places.

    Two that are equal, of two looks, are the same tensors', unless these were given up between the
    looks and others made in their places.
    """

    objects: list[int]
    """Python's numbers of them."""
    at: Addresses


def locate(tensors: Collection[torch.Tensor]) -> Located:
    """Where they are.

    Raises:
        Unlocated: one has no bytes of its own.
    """
    try:
        return Located([*map(id, tensors)], addresses(tensors))
    except RuntimeError as cause:
        raise Unlocated from cause


def joined(located: Iterable[Located | None]) -> Addresses:
    """Where all have their bytes, one after the other; nothing of those that are None."""
    return [*itertools.chain.from_iterable(some.at for some in located if some is not None)]


def addresses(tensors: Iterable[torch.Tensor]) -> Addresses:
    """Where tensors have their bytes.

    Raises:
        RuntimeError: one has none of its own.
    """
    return [*map(torch.Tensor.data_ptr, tensors)]
