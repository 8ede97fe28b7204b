# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod takes no answer of a coordinator that was replaced, and keeps the newest copy only."""

from __future__ import annotations

import pytest

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.coordinator_state import STATE_VERSION, CoordinatorState, RendezvousState
from rover_kf.sidecar.state_replica import REPLICA_FILE, StateFile, StateReplica
from tests.support.pods import checkpoint_pod


def answer(generation: int, copy: str = "") -> dict[str, str]:
    return {names.GENERATION_HEADER: str(generation), names.COPY_HEADER: copy}


def state(generation: int, revision: int) -> CoordinatorState:
    return CoordinatorState(generation, revision, RendezvousState(number=1, expected=2))


@pytest.fixture
def settings(tmp_path):
    found = checkpoint_pod.settings_of(tmp_path)
    (found.volume_path / names.RUN_DIR).mkdir(parents=True, exist_ok=True)
    return found


def test_lower_generations_are_refused_also_after_a_restart(settings):
    """What was heard of is in the volume: a new sidecar of the pod is not taken in either."""
    copy = StateReplica(settings)
    copy.admit(200, answer(7))
    copy.admit(200, answer(8))
    for one in (copy, StateReplica(settings)):
        one.load()
        with pytest.raises(errors.ClusterUnavailable, match="generation 7 answered, 8"):
            one.admit(200, answer(7))
        with pytest.raises(errors.ClusterUnavailable, match="no coordinator"):
            one.admit(200, {})
        one.admit(421, {})  # whoever refuses says nothing that could be wrong


def test_only_a_newer_copy_is_taken(settings):
    """By generation, then by revision; an answer that offers nothing newer is no news."""
    copy = StateReplica(settings)
    assert copy.is_behind(answer(7, "7.1"))
    copy.update(state(7, 3))
    copy.update(state(7, 2))
    assert copy.state == state(7, 3)
    assert [copy.is_behind(answer(8, told)) for told in ("7.3", "7.4", "8.1", "")] == [
        *(False, True, True, False)
    ]
    assert copy.headers()[names.COPY_HEADER] == "7.3"


def test_a_file_of_another_pod_or_version_is_not_read(settings):
    """A volume may be an earlier pod's; a state whose meaning changed is as good as none."""
    file = StateFile(settings.volume_path, "another", REPLICA_FILE)
    file.write(9, state(9, 1))
    assert StateFile(settings.volume_path, settings.pod_uid, REPLICA_FILE).read() is None
    newer = codec.encode(state(9, 1)) | {"version": STATE_VERSION + 1}
    StateFile(settings.volume_path, settings.pod_uid, REPLICA_FILE).write(
        9, codec.decode(CoordinatorState, newer)
    )
    assert StateFile(settings.volume_path, settings.pod_uid, REPLICA_FILE).read() is None
