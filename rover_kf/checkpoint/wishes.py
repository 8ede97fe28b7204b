# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which boxes of tensors a training process holds, by the tensors' names in a snapshot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from rover_kf import errors
from rover_kf.api.checkpoints import Wanted
from rover_kf.checkpoint.kinds import Box


@dataclasses.dataclass(frozen=True, slots=True)
class Wishes:
    """As it told them, to be found without a look at each: there is one for each of its tensors."""

    exact: Mapping[str, Wanted]
    begins: Mapping[int, Mapping[str, Wanted]]
    """Of names, by their length, the shortest first."""

    def box(self, name: str, shape: tuple[int, ...]) -> Box | None:
        """What is wanted of a tensor; None: it is not named.

        Raises:
            DoesNotFit: the script has it in another shape.
        """
        found = None
        for length, wishes in self.begins.items():
            wish = wishes.get(name[:length])
            if wish is not None and wish.shape == shape:
                found = wish
        exact = self.exact.get(name)
        if exact is not None and exact.shape != shape:
            message = f"{name} was saved with shape {shape}; this script has it as {exact.shape}"
            raise errors.DoesNotFit(message)
        wish = exact or found
        return None if wish is None else Box(wish.offsets, wish.sizes)


def wishes_of(wanted: Iterable[Wanted]) -> Wishes:
    """Put a training process's words in order."""
    exact: dict[str, Wanted] = {}
    begins: dict[int, dict[str, Wanted]] = {}
    for wish in wanted:
        names = begins.setdefault(len(wish.name), {}) if wish.prefix else exact
        names[wish.name] = wish
    return Wishes(exact, dict(sorted(begins.items())))
