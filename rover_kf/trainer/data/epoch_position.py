# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The order of a data set's samples in each epoch, and the place that training has come to.

It is the same on all ranks and is what a checkpoint keeps. A data set whose samples lie in blocks
says so by an attribute ``blocks`` (the samples of each block, in its order), one that knows its
contents by an attribute ``fingerprint``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Sized
from typing import Any

from rover_kf import errors
from rover_kf.trainer.data.shuffle import (
    BlockInterleave,
    BlockShuffled,
    SampleOrder,
    Shuffled,
    Unshuffled,
    digest,
)

_log = logging.getLogger("rover_kf")
_VERSION = 1


class EpochPosition:
    """A position of one job in one data set, the same on all ranks.

    With ``interleave`` an epoch goes over the data set's blocks; without it any sample may follow
    any other. An empty ``fingerprint`` stands for the data set's own.

    Raises:
        InputError: the data set has no length, or its blocks are not all of it.
    """

    def __init__(
        self,
        dataset: object,
        *,
        seed: int,
        shuffle: bool,
        fingerprint: str,
        interleave: BlockInterleave | None,
    ) -> None:
        if not isinstance(dataset, Sized):
            raise errors.InputError(
                f"{type(dataset).__name__} has no length; an order needs a data set that has one"
            )
        self.samples = len(dataset)
        self._seed, self._shuffle = seed, shuffle
        self._fingerprint = fingerprint or str(getattr(dataset, "fingerprint", ""))
        found: Sequence[int] = getattr(dataset, "blocks", ())
        self._blocks = found if shuffle and interleave is not None else ()
        self._interleave = interleave if len(self._blocks) else None
        if len(found) and sum(found) != self.samples:
            raise errors.InputError(
                f"{type(dataset).__name__} has {self.samples} samples and blocks of {sum(found)}; "
                "its attribute blocks must hold the number of samples in each block, in order"
            )
        self.epoch = 0
        self.done = 0
        """Samples of the epoch that steps have used, over all ranks."""

    def order(self) -> SampleOrder:
        """Return the order of the epoch."""
        if not self._shuffle:
            return Unshuffled()
        if self._interleave is None:
            return Shuffled(self.samples, self._seed, self.epoch)
        return BlockShuffled(self._blocks, self._interleave, self._seed, self.epoch)

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch, self.done = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position and what the order depends on."""
        lanes = self._interleave
        return {
            "version": _VERSION,
            "samples": self.samples,
            "fingerprint": self._fingerprint,
            "shuffle": self._shuffle,
            "blocks": "" if lanes is None else digest(self._blocks),
            "lanes": [] if lanes is None else [lanes.count, lanes.run_length],
            "seed": self._seed,
            "epoch": self.epoch,
            "done": self.done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a position.

        Raises:
            CheckpointError: it is a place in another data set, or of a newer version.
        """
        if state["version"] != _VERSION:
            raise errors.CheckpointError(
                f"the loader's state has version {state['version']}, this one reads {_VERSION}; "
                "restore with the version of rover-kf that wrote it, or a newer one"
            )
        own = self.state_dict()
        for name in ("samples", "fingerprint", "shuffle", "blocks"):
            if state[name] != own[name]:
                raise errors.CheckpointError(
                    f"the checkpoint's place is in an order of {name}={state[name]!r}, this data "
                    f"set has {own[name]!r}; train on the same data, or leave the loader out of "
                    "the state to begin an epoch of the new data"
                )
        for name in ("seed", "lanes"):
            if state[name] != own[name]:
                _log.warning("the order goes on with the checkpoint's %s %s", name, state[name])
        self._interleave = BlockInterleave(*state["lanes"]) if state["lanes"] else None
        self._seed, self.epoch, self.done = state["seed"], state["epoch"], state["done"]
