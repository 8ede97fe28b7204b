# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A state's tensors in order, by name only where somebody asks for one.

To put thousands of names into a dict takes a tenth of the time that a save may block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch

from rover_kf.trainer.located import Addresses, addresses


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
