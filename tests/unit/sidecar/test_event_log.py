# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The job's story as the coordinator keeps it until the controller asks."""

from __future__ import annotations

from rover_kf.api import names
from rover_kf.sidecar.event_log import MAX_EVENTS, EventLog


def test_what_hundreds_of_ranks_say_does_not_push_out_why_they_say_it():
    """A world of 512 ranks fails and starts again between two looks of the controller."""
    story = EventLog("train-worker-0")
    story.record(names.EVENT_PROCESS_FAILED, "rank 7 was killed", warning=True)
    story.record(names.EVENT_WORLD_FORMED, "round 2: 512 processes in 64 pods")
    for rank in range(512):
        story.record(names.EVENT_RESTORED, f"rank {rank} of 512 resumes at step 8")
    story.record(names.EVENT_RECOVERED, "round 2: every rank steps again")
    kept = story.after(0)
    assert len(kept) == MAX_EVENTS
    assert [event.message for event in kept[:2]] == [
        "rank 7 was killed",
        "round 2: 512 processes in 64 pods",
    ]
    assert [event.sequence for event in kept[-3:]] == [513, 514, 515]
    assert story.after(513) == kept[-2:]
