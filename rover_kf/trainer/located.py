# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where a state's tensors have their bytes.

Of two looks that find them in the same places, the tensors are the same, or others that have taken
over their memory: which of both costs as much to tell as the look, so whoever trusts it compares
shapes and types when there is time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TypeAlias

import torch

Addresses: TypeAlias = list[int]
"""Where tensors have their bytes, in their order."""


class Unlocated(Exception):
    """A tensor has no bytes of its own; it is sparse."""


def locate(tensors: Iterable[torch.Tensor]) -> Addresses:
    """Where they are.

    Raises:
        Unlocated: one has no bytes of its own.
    """
    try:
        return addresses(tensors)
    except RuntimeError as cause:
        raise Unlocated from cause


def joined(located: Iterable[Addresses | None]) -> Addresses:
    """Where all have their bytes, one after the other; nothing of those that are None."""
    return [*itertools.chain.from_iterable(some for some in located if some is not None)]


def addresses(tensors: Iterable[torch.Tensor]) -> Addresses:
    """Where tensors have their bytes.

    Raises:
        RuntimeError: one has none of its own.
    """
    return [*map(torch.Tensor.data_ptr, tensors)]
