# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is left in a container's termination log."""

from __future__ import annotations

import pathlib

from rover_kf.api import names, termination_log

POD = pathlib.Path(names.HOME)


def test_a_verdict_is_left_where_the_kubelet_looks(tmp_path):
    """In the log that is there and empty; cut between characters, as the status has to be text."""
    log = tmp_path / "termination-log"
    log.touch()
    assert termination_log.write(POD, "rank 1: user_error: " + "é" * 4000, log)
    found = log.read_bytes()
    assert found.decode().startswith("rank 1: user_error: éé")
    assert 4090 < len(found) <= 4096


def test_nothing_of_others_is_touched(tmp_path):
    """What the program has written stays, no log is made, and outside pods none is written."""
    log = tmp_path / "termination-log"
    assert not termination_log.write(POD, "why", log)
    assert not log.exists()
    log.touch()
    assert not termination_log.write(tmp_path, "why", log)
    assert log.read_text() == ""
    log.write_text("mine")
    assert not termination_log.write(POD, "why", log)
    assert log.read_text() == "mine"
