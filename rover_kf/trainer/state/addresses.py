# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A state's tensors in order, by name only where somebody asks for one.

To put thousands of names into a dict takes a tenth of the time that a save may block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import torch

# Of two looks that find them in the same places, the tensors are the same, or others that have
# taken over their memory: which of both costs as much to tell as the look, so whoever trusts it
# compares shapes and types when there is time.
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


class Named(Mapping[str, torch.Tensor]):
    """Tensors by name.

    Args:
        names: groups of distinct ones.
        listed: the tensors in their order.
        at: where they have their bytes; None: nobody has looked.
    """

    def __init__(
        self,
        names: Sequence[Sequence[str]],
        listed: list[torch.Tensor],
        at: Addresses | None = None,
    ) -> None:
        self._groups, self.listed, self.at = names, listed, at
        self._found: dict[str, torch.Tensor] | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._by_name()[name]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self._groups)

    def __len__(self) -> int:
        return len(self.listed)

    def _by_name(self) -> dict[str, torch.Tensor]:
        if self._found is None:
            self._found = dict(zip(self, self.listed, strict=True))
        return self._found


def listed(tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """All of them in order."""
    return tensors.listed if isinstance(tensors, Named) else list(tensors.values())


def addresses_of(tensors: Mapping[str, torch.Tensor]) -> Addresses:
    """Where all of them have their bytes, in order."""
    if isinstance(tensors, Named) and tensors.at is not None:
        return tensors.at
    return addresses(listed(tensors))
