# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whose a control group is, and what of its account counts."""

from __future__ import annotations

import os
import subprocess

import pytest

from rover_kf.trainer import resource_usage

V2 = "anon 1000\nfile 50000\nkernel 700\nkernel_stack 10\npagetables 20\nsock 5\nshmem 300\n"
V1 = "cache 7\nrss 8\nshmem 9\ntotal_cache 50000\ntotal_rss 1000\ntotal_shmem 300\n"


@pytest.fixture
def two():
    """Two processes that know nothing of one another."""
    started = [subprocess.Popen(["cat"], stdin=subprocess.PIPE) for _ in range(2)]
    yield [process.pid for process in started]
    for process in started:
        process.communicate()


@pytest.fixture
def group(tmp_path):
    def make(text, *members):
        (tmp_path / "memory.stat").write_text(text)
        (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in members))
        return tmp_path

    return make


@pytest.mark.parametrize(("text", "held"), [(V2, 1335), (V1, 1300)])
def test_files_are_left_out(group, text, held):
    """Under both versions of control groups."""
    found = resource_usage.find_cgroup(os.getpid(), (group(text, os.getpid()),))
    assert found is not None
    assert resource_usage.unreclaimable_bytes(found) == held


def test_others_may_not_be_in_it(group, two):
    """What has started the launcher is no other, nor is what has ended meanwhile."""
    launcher, other = two
    ours = (os.getpid(), os.getppid(), launcher)
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert resource_usage.find_cgroup(launcher, (group(V2, *ours, gone.pid),)) is not None
    assert resource_usage.find_cgroup(launcher, (group(V2, *ours, other),)) is None
    assert resource_usage.find_cgroup(launcher, (group(V2, *ours, 0),)) is None


def test_without_an_account_there_is_none(group, two):
    """No such folder, no account of memory, or a group that this process is not in."""
    place = group(V2, *two)
    assert resource_usage.find_cgroup(two[0], (place / "none", place)) is None
    assert resource_usage.find_cgroup(two[0], (group("", os.getpid()),)) is None
