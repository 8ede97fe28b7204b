# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Seeds of a loader's workers that cost torch's own generator no number.

DataLoader draws one each time it is iterated. A process that goes on in the middle of an epoch
iterates once more than one that nobody killed: all that its loop draws after that (dropout) would
be other numbers, also where the checkpoint has brought the generator back.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

_BITS = 63


class WorkerSeeds:
    """The seeds of one loader's workers; a generator among its options is left alone."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._has_generator = options.get("generator") is not None

    def begin(self, loader: DataLoader[Any], epoch: int, done: int) -> None:
        """Seed an iteration by the script's seed and the position in the data."""
        if not self._has_generator:
            place = random.Random(f"{torch.initial_seed()} {epoch} {done}")  # noqa: S311 - no secret
            # Where DataLoader makes the tensor that it draws into: the default device.
            loader.generator = torch.Generator(torch.empty(()).device)
            loader.generator.manual_seed(place.getrandbits(_BITS))
