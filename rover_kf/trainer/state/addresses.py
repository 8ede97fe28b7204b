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


class NoDataPointer(Exception):
    """A tensor has no bytes of its own; it is sparse."""


def data_ptr_of(tensors: Iterable[torch.Tensor]) -> Addresses:
    """Where they are.

    Raises:
        Unlocated: one has no bytes of its own.
    """
    try:
        return addresses(tensors)
    except RuntimeError as cause:
        raise NoDataPointer from cause


def joined(located: Iterable[Addresses | None]) -> Addresses:
    """Where all have their bytes, one after the other; nothing of those that are None."""
    return [*itertools.chain.from_iterable(some for some in located if some is not None)]


def addresses(tensors: Iterable[torch.Tensor]) -> Addresses:
    """Where tensors have their bytes.

    Raises:
        RuntimeError: one has none of its own.
    """
    return [*map(torch.Tensor.data_ptr, tensors)]


class LazyNames(Mapping[str, torch.Tensor]):
    """Tensors by name.

    Args:
        names: groups of distinct ones.
        ordered: the tensors in their order.
        data_ptrs: where they have their bytes; None: nobody has looked.
    """

    def __init__(
        self,
        names: Sequence[Sequence[str]],
        ordered: list[torch.Tensor],
        data_ptrs: Addresses | None = None,
    ) -> None:
        self._groups, self.ordered, self.data_ptrs = names, ordered, data_ptrs
        self._mapping: dict[str, torch.Tensor] | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._by_name()[name]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self._groups)

    def __len__(self) -> int:
        return len(self.ordered)

    def _by_name(self) -> dict[str, torch.Tensor]:
        if self._mapping is None:
            self._mapping = dict(zip(self, self.ordered, strict=True))
        return self._mapping


def tensor_list(tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """All of them in order."""
    return tensors.ordered if isinstance(tensors, LazyNames) else list(tensors.values())


def addresses_of(tensors: Mapping[str, torch.Tensor]) -> Addresses:
    """Where all of them have their bytes, in order."""
    if isinstance(tensors, LazyNames) and tensors.data_ptrs is not None:
        return tensors.data_ptrs
    return addresses(tensor_list(tensors))
