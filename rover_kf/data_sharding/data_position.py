# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The place in a data set as a checkpoint keeps it, with what tells other data from these; pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.data import DataPlan, DataProgress, Partition

VERSION = 1


def dump(identity: Mapping[str, Any], progress: DataProgress) -> dict[str, Any]:
    """What a checkpoint keeps, as plain data."""
    return {"version": VERSION, **identity, "progress": codec.encode(progress)}


def load(identity: Mapping[str, Any], state: Mapping[str, Any]) -> DataProgress:
    """What of these data a checkpoint has used.

    Raises:
        CheckpointError: it is of other data, or of a newer version.
    """
    if state["version"] != VERSION:
        raise errors.CheckpointError(
            f"the state of data set {identity['name']!r} has version {state['version']}, this "
            f"one reads {VERSION}; restore with the version of rover-kf that wrote it"
        )
    for name, own in identity.items():
        if state[name] != own:
            raise errors.CheckpointError(
                f"the checkpoint has used slots of data with {name} {state[name]!r}, this data "
                f"set has {own!r}; train on the same data, or leave it out of the state to "
                "begin anew"
            )
    return codec.decode(DataProgress, state["progress"])


def identity(
    name: str, fingerprint: str, order: str, partitions: Iterable[Partition]
) -> dict[str, Any]:
    """What a checkpoint's data must have in common with these; of streams not how far they go."""
    slots = {p.name: p.end - p.begin for p in partitions if p.bounded}
    return {"name": name, "fingerprint": fingerprint, "order": order, "slots": slots}


def to_text(plan: DataPlan, progress: DataProgress) -> str:
    """For a checkpoint that keeps texts."""
    return json.dumps(dump(_plan_identity(plan), progress))


def from_text(plan: DataPlan, text: str) -> DataProgress:
    """What ``to_text`` has written.

    Raises:
        CheckpointError: it is of other data, of a newer version, or damaged.
    """
    try:
        state = json.loads(text)
        return load(_plan_identity(plan), state)
    except (ValueError, KeyError, TypeError, errors.ProtocolError) as cause:
        raise errors.CheckpointError(
            f"the place in data set {plan.name!r} cannot be read from the checkpoint: {cause!r}"
        ) from cause


def _plan_identity(plan: DataPlan) -> dict[str, Any]:
    return identity(plan.name, plan.fingerprint, plan.order, plan.partitions)
