# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which boxes of tensors a training process holds, by the tensors' names in a snapshot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from rover_kf import errors
from rover_kf.api.checkpoints import Wanted
from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.checkpoint.format.tensor_layout import Box, Kinds
from rover_kf.checkpoint.resharding.prefix_index import Begins, by_begin

_NONE: Mapping[str, Place] = MappingProxyType({})


class Place(NamedTuple):
    """The part of a tensor that a training process holds."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def together(names: Mapping[str, Place], begins: Mapping[str, Place] = _NONE) -> tuple[Wanted, ...]:
    """What it tells of them: tensors that are cut alike at once.

    Args:
        names: of tensors.
        begins: of names.
    """
    alike: dict[Place, tuple[list[str], list[str]]] = {}
    for number, some in enumerate((names, begins)):
        for name, place in some.items():
            alike.setdefault(place, ([], []))[number].append(name)
    return tuple(Wanted(*place, tuple(n), tuple(b)) for place, (n, b) in alike.items())


@dataclasses.dataclass(frozen=True, slots=True)
class Wishes:
    """As it told them, by name."""

    exact: Mapping[str, Wanted]
    begins: Begins[Wanted]

    def box(self, name: str, shape: tuple[int, ...]) -> Box | None:
        """What is wanted of a tensor; None: it is not named.

        Raises:
            DoesNotFit: the script has it in another shape.
        """
        wish = self.exact.get(name)
        if wish is None:
            fitting = (wish for wish in self.begins.of(name) if wish.shape == shape)
            wish = next(fitting, None)
        elif wish.shape != shape:
            message = f"{name} was saved with shape {shape}; this script has it as {wish.shape}"
            raise errors.DoesNotFit(message)
        return None if wish is None else Box(wish.offsets, wish.sizes)


def lies_as_wished(head: Snapshot, kinds: Kinds, wishes: Wishes) -> bool:
    """Whether a rank that saved this, in a world of the same size, can go on from it as it is.

    Raises:
        DoesNotFit: the script has a tensor in another shape.
    """
    if not kinds.complete:
        return False
    for entry in (place.entry for place in head.tensors.values()):
        box = wishes.box(entry.name, kinds.shape(entry))
        # A piece that is not named comes whole: the script may hold all of it now.
        if box != kinds.box(entry) and (box is not None or entry.name in kinds.pieces):
            return False
    return True


def wishes_of(wanted: Iterable[Wanted]) -> Wishes:
    """Put a training process's words in order."""
    exact: dict[str, Wanted] = {}
    begins: dict[str, Wanted] = {}
    for wish in wanted:
        exact |= dict.fromkeys(wish.names, wish)
        begins |= dict.fromkeys(wish.begins, wish)
    return Wishes(exact, by_begin(begins))
