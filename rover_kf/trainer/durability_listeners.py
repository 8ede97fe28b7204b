# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Entries of a state that tell others how far the job is: no more than what is durable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Protocol

from rover_kf.api import names
from rover_kf.api.checkpoints import WaitRequest
from rover_kf.api.states import State
from rover_kf.api.status import Ack
from rover_kf.trainer.sidecar_client import SidecarClient

_TIMEOUT_SECONDS = 5.0


class DurabilityListener(Protocol):
    """An entry of a state that reports how far the job is."""

    def state_saved(self, is_durable: Callable[[], bool]) -> None:
        """Note that the state was saved as it is now; return at once.

        ``is_durable`` requests from the sidecar whether this step or a newer one is durable by now,
        from any thread. It raises SidecarUnavailable if the sidecar does not answer.
        """


def notify(saved_state: State, state: Mapping[str, object], sidecar: SidecarClient) -> None:
    """Notify the listeners of a state that it was saved."""
    for value in state.values():
        # Of the class: to ask a module for what it does not have takes longer than all the rest.
        saved = getattr(type(value), DurabilityListener.state_saved.__name__, None)
        if saved is not None:
            saved(value, functools.partial(_is_durable, saved_state, sidecar))


def _is_durable(state: State, sidecar: SidecarClient) -> bool:
    # A question of 0 seconds waits for nothing, and hurries nobody.
    asked = WaitRequest(state, "durable", 0.0)
    return sidecar.request(names.PATH_WAIT, asked, Ack, timeout=_TIMEOUT_SECONDS).done
