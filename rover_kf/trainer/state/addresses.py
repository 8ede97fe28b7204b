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

Addresses: TypeAlias = list[int]
"""Where tensors have their bytes, in their order."""


def addresses(tensors: Iterable[torch.Tensor]) -> Addresses:
    """Return where tensors have their bytes."""
    return [*map(torch.Tensor.data_ptr, tensors)]


class LazyNames(Mapping[str, torch.Tensor]):
    """Tensors by name, from groups of names and the tensors in their order."""

    def __init__(self, names: Sequence[Sequence[str]], ordered: list[torch.Tensor]) -> None:
        self._groups, self.ordered = names, ordered
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
