# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Real parameter servers write their own variables, and read them again."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator

import pytest

from tests.support.jobs.tensorflow_servers import Servers, running
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(600)

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "server_files.py"


@pytest.fixture
def started(tensorflow, tmp_path) -> Callable[..., contextlib.AbstractContextManager[Servers]]:
    """Starts so many servers; what they save stays."""
    words = [str(SCRIPT), str(tmp_path / "shards"), str(tmp_path / "saved")]

    def begin(servers: int, **hidden) -> contextlib.AbstractContextManager[Servers]:
        return running(tensorflow, words, servers, **hidden)

    return begin


@pytest.fixture
def folders(tmp_path) -> Callable[[int], list[pathlib.Path]]:
    """The folders that servers have written to for a step."""
    return lambda step: sorted((tmp_path / "shards").glob(f"step-{step:012d}-1.*"))


def _big(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Files that hold servers' variables."""
    return (path for path in sorted(folder.glob("state.data-*")) if path.stat().st_size > 10_000)


@pytest.mark.parametrize(("before", "after"), [(2, 2), (1, 2), (2, 1), (3, 2)])
def test_what_servers_wrote_comes_back_bit_by_bit(started, folders, before, after):
    """Tables that lie on all servers, an optimizer's slots, small variables; with as many servers,
    and with more or fewer. Each of those that wrote has a file of its own."""
    with started(before) as servers:
        drawn = servers.ask("draw:5")
        assert servers.ask("write:7") == drawn
    (folder,) = folders(7)
    assert len(list(_big(folder))) == before
    with started(after) as others:
        assert others.ask("look") != drawn
        assert others.ask("read:7") == drawn
        assert others.ask("write:8") == drawn
    assert len(list(_big(folders(8)[0]))) == after


def _changed(path: pathlib.Path) -> None:
    """A byte in the middle is another one."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_damaged_files_are_never_taken(started, folders):
    """A byte of a server's variables, of the chief's, of the index; a file that is cut off, one
    that is gone. What is whole is read after them, in the same process."""
    with started(2) as servers:
        kept = servers.ask("draw:5")
        for step in range(1, 7):
            servers.ask(f"write:{step}")
    *_, last = _big(folders(1)[0])
    _changed(last)
    _changed(folders(2)[0] / "state.data-00002-of-00003")
    _changed(folders(3)[0] / "state.index")
    cut = next(_big(folders(4)[0]))
    os.truncate(cut, cut.stat().st_size - 1)
    next(_big(folders(5)[0])).unlink()
    with started(2) as servers:
        said = [servers.ask(f"read:{step}") for step in range(1, 6)]
        assert servers.ask("read:6") == kept
    print(*said, sep="\n")
    assert all(line.startswith("CorruptSnapshot ") for line in said)
    known = (
        "Checksum does not",
        "Checksum does not",
        "the index in",
        "bytes where",
        "No such file",
    )
    assert [line for line, words in zip(said, known, strict=True) if words not in line] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount of its own takes root")
def test_a_server_without_the_volume_is_named(started, tmp_path):
    """Before anything is saved; the others are not blamed, and nothing is left."""
    (tmp_path / "shards").mkdir()
    with started(3, hidden=tmp_path / "shards", blind=(1,)) as servers:
        said = servers.ask("write:1")
    print(said)
    assert said.startswith("CheckpointError ")
    assert "ps 1: " in said
    assert "ps 0" not in said
    assert "ps 2" not in said
    assert "rover-kf.io/checkpoint.shards" in said
    assert not list((tmp_path / "shards").iterdir())


def test_a_server_is_killed_while_it_writes(started, folders, monkeypatch):
    """The step is not there, the one before is."""
    monkeypatch.setenv("ROWS", str(1 << 20))  # 64 MiB a server
    with started(2) as servers:
        kept = servers.ask("draw:5")
        servers.ask("write:1")
        servers.ask("draw:6")
        servers.say("write:2")
        eventually(
            lambda: folders(2) and list(folders(2)[0].glob("*/part-00001-*.tempstate*")),
            within=60, every=0.001, what="the second server writes",
        )  # fmt: skip
        servers.servers[1].kill()
        assert servers.heard("write:2").startswith("UnavailableError ")
    assert not list(folders(2)[0].glob("*.index"))
    with started(2) as others:
        assert others.ask("read:1") == kept


def test_nothing_of_the_servers_passes_through_the_chief(started, folders, tmp_path, monkeypatch):
    """256 MiB on two servers, a save of each kind in turns: how long each stands still, and what
    memory it takes of the chief."""
    monkeypatch.setenv("ROWS", str(1 << 21))  # a table, and as much that the optimizer keeps
    with started(2) as servers:
        servers.ask("draw:5")
        told: dict[str, list[tuple[float, int]]] = {"servers": [], "chief": []}
        for step in range(1, 5):
            for way, found in told.items():
                seconds, more = servers.ask(f"{way}:{step * 10 + len(way)}").split()
                found.append((float(seconds), int(more)))
    print(*(f"{way}: (s, MiB) {found}" for way, found in told.items()), sep="\n")
    assert max(more for _, more in told["servers"]) < 64
    assert max(more for _, more in told["chief"]) > 200  # the first; what it had is used again
    sizes = {
        way: sum(
            path.stat().st_size for path in (tmp_path / "saved" / str(10 + len(way))).iterdir()
        )
        for way in told
    }
    assert sizes["servers"] < 10_000
    assert sizes["chief"] > 256 << 20
    assert all(path.stat().st_size > 128 << 20 for path in _big(folders(17)[0]))


@pytest.mark.parametrize("servers", [1, 2])
def test_an_optimizer_whose_slots_do_not_come_back_is_told(started, monkeypatch, capfd, servers):
    """One of the legacy, for tables that lie on several servers; on one server they do."""
    monkeypatch.setenv("OPTIMIZER", "legacy")
    with started(servers) as some:
        some.ask("draw:5")
        for verb in ("write:1", "write:2", "chief:3"):
            some.ask(verb)
    told = capfd.readouterr().err.count("begins with initial slots")
    assert told == (1 if servers > 1 else 0)
