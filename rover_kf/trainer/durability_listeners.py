# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Entries of a state that tell others how far the job is: no more than what is durable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Protocol

from rover_kf.api import names
from rover_kf.api.checkpoints import WaitRequest
from rover_kf.api.status import Acknowledged
from rover_kf.trainer.sidecar_client import Link

_TIMEOUT_SECONDS = 5.0


class Follower(Protocol):
    """An entry of a state."""

    def state_saved(self, is_durable: Callable[[], bool]) -> None:
        """The state was saved as it is now; returns at once.

        Args:
            is_durable: asks the sidecar whether this step or a newer one is durable by now, from
                any thread; raises SidecarUnavailable if it does not answer.
        """


def tell(step: int, state: Mapping[str, object], link: Link) -> None:
    """Tell those of a state that it was saved."""
    for value in state.values():
        # Of the class: to ask a module for what it does not have takes longer than all the rest.
        saved = getattr(type(value), Follower.state_saved.__name__, None)
        if saved is not None:
            saved(value, functools.partial(_is_durable, step, link))


def _is_durable(step: int, link: Link) -> bool:
    # A question of 0 seconds waits for nothing, and hurries nobody.
    asked = WaitRequest(step, "durable", 0.0)
    return link.ask(names.PATH_WAIT, asked, Acknowledged, timeout=_TIMEOUT_SECONDS).done
