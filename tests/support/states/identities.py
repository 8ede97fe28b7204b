# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Identities of states, short to write where no coordinator has started the round."""

from __future__ import annotations

from rover_kf.api.states import RoundId, State


def round_id(number: int, generation: int = 0) -> RoundId:
    """A round."""
    return RoundId(generation, number)


def state(step: int, round_: int = 1, save: int = 1, *, generation: int = 0) -> State:
    """A state."""
    return State(RoundId(generation, round_), step, save)
