# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What ended a round, in the Events of other things."""

from __future__ import annotations

from rover_kf.api import names
from rover_kf.api.policy import FailurePolicy
from rover_kf.elastic.rendezvous.effects import EmitEvent, truncate
from rover_kf.elastic.rendezvous.rendezvous_limits import RendezvousLimits
from rover_kf.elastic.rendezvous.restart_budget import RestartLimiter
from rover_kf.elastic.rendezvous.world import World

FRAME = '  File "/rover/runtime/rover_kf/trainer/load.py", line 148, in place\n    values = {}\n'
SAID = 'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s): "3.weight".'
REASON = f"rank 1 in digits-worker-1: error: {FRAME * 8}{SAID}"


def test_who_failed_and_the_error_are_kept():
    """What is left out of a long traceback is its middle."""
    said = truncate(REASON)
    assert len(said) < 310
    assert "\n" not in said
    assert said.startswith("rank 1 in digits-worker-1: error: File ")
    assert said.endswith(" ".join(SAID.split()))
    assert truncate("rank 0: error:\n  ValueError: no") == "rank 0: error: ValueError: no"


def test_a_delayed_restart_says_what_went_wrong():
    """The error itself, not the frames that led to it."""
    world = World(
        RendezvousLimits(
            nodes=1, min_nodes=1, max_nodes=1, failures=FailurePolicy(restarts=100, max_backoff=5.0)
        )
    )
    restarts = RestartLimiter(world)
    for number in (1, 2):
        restarts.consume(number, "error", REASON)
    (told,) = (effect for effect in world.flush() if isinstance(effect, EmitEvent))
    assert told.reason == names.EVENT_BACK_OFF
    assert told.message.endswith('Missing key(s): "3.weight".')
