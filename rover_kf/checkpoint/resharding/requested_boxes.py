# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which boxes of tensors a training process holds, by the tensors' names in a snapshot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from rover_kf import errors
from rover_kf.api.checkpoints import RequestedBoxes
from rover_kf.checkpoint.format.snapshot import Snapshot
from rover_kf.checkpoint.format.tensor_layout import Box, TensorLayout
from rover_kf.checkpoint.resharding.prefix_index import PrefixIndex, index_by_prefix

_NONE: Mapping[str, TensorBox] = MappingProxyType({})


class TensorBox(NamedTuple):
    """The part of a tensor that a training process holds."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def group_by_box(
    names: Mapping[str, TensorBox], prefixes: Mapping[str, TensorBox] = _NONE
) -> tuple[RequestedBoxes, ...]:
    """What it tells of them: tensors that are cut alike at once.

    Args:
        names: of tensors.
        prefixes: of names.
    """
    alike: dict[TensorBox, tuple[list[str], list[str]]] = {}
    for number, some in enumerate((names, prefixes)):
        for name, place in some.items():
            alike.setdefault(place, ([], []))[number].append(name)
    return tuple(RequestedBoxes(*place, tuple(n), tuple(b)) for place, (n, b) in alike.items())


@dataclasses.dataclass(frozen=True, slots=True)
class RequestedBoxIndex:
    """As it told them, by name."""

    exact: Mapping[str, RequestedBoxes]
    prefixes: PrefixIndex[RequestedBoxes]

    def box(self, name: str, shape: tuple[int, ...]) -> Box | None:
        """What is wanted of a tensor; None: it is not named.

        Raises:
            IncompatibleState: the script has it in another shape.
        """
        wish = self.exact.get(name)
        if wish is None:
            fitting = (wish for wish in self.prefixes.matches(name) if wish.shape == shape)
            wish = next(fitting, None)
        elif wish.shape != shape:
            message = f"{name} was saved with shape {shape}; this script has it as {wish.shape}"
            raise errors.IncompatibleState(message)
        return None if wish is None else Box(wish.offsets, wish.sizes)


def matches_request(head: Snapshot, layout: TensorLayout, requested: RequestedBoxIndex) -> bool:
    """Whether a rank that saved this, in a world of the same size, can go on from it as it is.

    Raises:
        IncompatibleState: the script has a tensor in another shape.
    """
    if not layout.complete:
        return False
    for entry in (place.entry for place in head.tensors.values()):
        box = requested.box(entry.name, layout.full_shape(entry))
        # A piece that is not named comes whole: the script may hold all of it now.
        if box != layout.box(entry) and (box is not None or entry.name in layout.shards):
            return False
    return True


def index_requested(requested: Iterable[RequestedBoxes]) -> RequestedBoxIndex:
    """Put a training process's words in order."""
    exact: dict[str, RequestedBoxes] = {}
    begins: dict[str, RequestedBoxes] = {}
    for wish in requested:
        exact |= dict.fromkeys(wish.names, wish)
        begins |= dict.fromkeys(wish.prefixes, wish)
    return RequestedBoxIndex(exact, index_by_prefix(begins))
