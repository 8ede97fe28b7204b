# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The verdict that a launcher leaves in its container's termination log."""

from __future__ import annotations

import pathlib

from rover_kf.api import names
from rover_kf.launcher import last_words

POD = pathlib.Path(names.HOME)


def test_a_verdict_is_left_where_the_kubelet_looks(tmp_path):
    """In the log that is there and empty; cut between characters, as the status has to be text."""
    log = tmp_path / "termination-log"
    log.touch()
    assert last_words.leave(POD, "rank 1: user_error: " + "é" * 2000, log)
    found = log.read_bytes()
    assert found.decode().startswith("rank 1: user_error: éé")
    assert 2000 < len(found) <= 2048


def test_nothing_of_others_is_touched(tmp_path):
    """What the program has written stays, no log is made, and outside pods none is written."""
    log = tmp_path / "termination-log"
    assert not last_words.leave(POD, "why", log)
    assert not log.exists()
    log.touch()
    assert not last_words.leave(tmp_path, "why", log)
    assert log.read_text() == ""
    log.write_text("mine")
    assert not last_words.leave(POD, "why", log)
    assert log.read_text() == "mine"
