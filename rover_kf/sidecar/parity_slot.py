# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What stands in a parity's slot: its lane as JSON, the length of that before it, then the parity.

So one checksum is over both, and a sidecar that comes after a crash knows what it has.
"""

from __future__ import annotations

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.checkpoints import Holding, Lane, Parity
from rover_kf.checkpoint import pieces
from rover_kf.sidecar.slots import Slots

_LENGTH_BYTES = 8


def head(lane: Lane) -> bytes:
    """What stands before the parity."""
    text = codec.dumps(lane)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def found(slots: Slots) -> tuple[tuple[Parity, ...], tuple[str, ...]]:
    """The parities in a pod's memory, each verified, and what was wrong with others; blocks.

    Args:
        slots: of the pod.
    """
    whole: list[Parity] = []
    wrong: list[str] = []
    for place in slots.parities():
        holdings, damages = slots.holdings(place)
        wrong.extend(damages)
        for holding in holdings:
            try:
                whole.append(_read(slots, place, holding))
            except (errors.TornSnapshot, errors.MessageError) as damage:  # noqa: PERF203 - two slots
                wrong.append(f"{place} of step {holding.step}: {damage}")
    return tuple(whole), tuple(wrong)


def _read(slots: Slots, place: str, holding: Holding) -> Parity:
    arena = slots.arena(place)
    for seal in arena.sealed():
        if seal.step == holding.step and seal.round == holding.round:
            with arena.pin(seal) as pin:
                size = pieces.joined(pieces.read(pin.descriptor, 0, _LENGTH_BYTES))
                length = int.from_bytes(size, "little")
                text = pieces.joined(pieces.read(pin.descriptor, _LENGTH_BYTES, length))
            return Parity(holding, _LENGTH_BYTES + length, codec.loads(Lane, text))
    raise errors.TornSnapshot("it was overwritten while it was looked up")
