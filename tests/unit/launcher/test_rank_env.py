# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The variables of a training process."""

from __future__ import annotations

import pathlib

from rover_kf.api.membership import Identity, Member, Round
from rover_kf.launcher import drain_file, oom_kills, rank_env


def test_ranks_follow_the_round():
    """The second pod's processes get the ranks after the first pod's, and the first's store."""
    members = (Member("a", "1", 0, 2), Member("b", "1", 1, 3))
    current = Round(4, members, 5, "10.0.0.1", 4711)
    identity = Identity("job", "b", "10.0.0.2", 1, coordinator=False)
    home = pathlib.Path("/rover")
    found = rank_env.rank_envs(current, identity, role="r", shared_dir=home, inherited={})
    assert [place.rank for place in found] == [2, 3, 4]
    variables = found[1].variables
    assert {name: variables[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")} == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
    }
    assert (variables["WORLD_SIZE"], variables["LOCAL_WORLD_SIZE"]) == ("5", "3")
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("10.0.0.1", "4711")
    assert variables["ROVER_ROUND"] == "4"
    assert "GLOO_SOCKET_IFNAME" not in variables


def test_loopback_pods():
    """Pods on loopback addresses use the loopback interface, unless the user said otherwise."""
    current = Round(1, (Member("a", "1", 0, 1),), 1, "127.1.0.1", 1)
    identity = Identity("job", "a", "127.1.0.1", 0, coordinator=True)
    for given, wanted in (({}, "lo"), ({"GLOO_SOCKET_IFNAME": "eth0"}, None)):
        (place,) = rank_env.rank_envs(
            current, identity, role="r", shared_dir=pathlib.Path("/r"), inherited=given
        )
        assert place.variables.get("GLOO_SOCKET_IFNAME") == wanted


def test_names_are_not_waited_for_long():
    """A silent name server must not hold a restart up; what the user asks for stays."""
    current = Round(1, (Member("a", "1", 0, 1),), 1, "10.0.0.1", 1)
    identity = Identity("job", "a", "10.0.0.1", 0, coordinator=True)
    given = {"identity": identity, "role": "r", "shared_dir": pathlib.Path("/r")}
    (place,) = rank_env.rank_envs(current, inherited={}, **given)
    assert place.variables["RES_OPTIONS"] == "timeout:1 attempts:3"
    (place,) = rank_env.rank_envs(current, inherited={"RES_OPTIONS": "rotate"}, **given)
    assert "RES_OPTIONS" not in place.variables


def test_drain_file_is_written_in_place(tmp_path):
    """A trainer that has the file mapped sees the new step: the file is never replaced."""
    (tmp_path / "run").mkdir()
    drain_file.write(tmp_path, 0)
    inode = (tmp_path / "run/drain-at").stat().st_ino
    drain_file.write(tmp_path, 77)
    assert int.from_bytes((tmp_path / "run/drain-at").read_bytes(), "little") == 77
    assert (tmp_path / "run/drain-at").stat().st_ino == inode


def test_memory_kills(tmp_path):
    """The counter is found in both versions' files; without one it is 0."""
    v2, v1 = tmp_path / "memory.events", tmp_path / "memory.oom_control"
    assert oom_kills.count((v2, v1)) == 0
    v1.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert oom_kills.count((v2, v1)) == 3
    v2.write_text("low 0\noom 1\noom_kill 2\noom_group_kill 0\n")
    assert oom_kills.count((v2, v1)) == 2


def test_memory_limit(tmp_path):
    """Bytes in both versions' files; no limit, or none to read, is 0."""
    v2, v1 = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    assert oom_kills.limit((v2, v1)) == 0
    v1.write_text("536870912\n")
    assert oom_kills.limit((v2, v1)) == 512 << 20
    v1.write_text("9223372036854771712\n")
    assert oom_kills.limit((v2, v1)) == 0
    v2.write_text("max\n")
    assert oom_kills.limit((v2, v1)) == 0
    v2.write_text("1073741824\n")
    assert oom_kills.limit((v2, v1)) == 1 << 30
