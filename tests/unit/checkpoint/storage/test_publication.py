# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Names that are taken once, and what writers leave aside."""

from __future__ import annotations

import errno
import os

import pytest

from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.publication import LinksUnsupported, Publisher
from rover_kf.checkpoint.storage.syscalls import Syscalls
from tests.support.states import identities


def _write(storage: DirectoryStorage, content: bytes) -> str:
    folder = storage.folder(identities.state(1))
    return storage.write_rank(folder, 0, iter([memoryview(content)]), len(content)).name


class Linkless(Syscalls):
    """A file system as SMB is."""

    def link(self, source, target):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), source, None, target)


def test_a_name_that_is_taken_keeps_its_file(tmp_path):
    """The attempt is refused, and what it has written aside stays for another name."""
    publisher, path = Publisher(Syscalls()), tmp_path / "a"
    path.write_bytes(b"first")
    with publisher.staged(path, [memoryview(b"second")]) as (part, _):
        assert not publisher.link(part, path)
        assert publisher.link(part, tmp_path / "b")
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == {
        "a": b"first",
        "b": b"second",
    }


def test_without_links_a_file_gets_a_name_of_its_own(tmp_path):
    """A rename replaces nothing where no other attempt has the name."""
    with pytest.raises(LinksUnsupported):
        Publisher(Linkless()).link(tmp_path / "a", tmp_path / "b")
    storage = DirectoryStorage(tmp_path / "demo", Linkless())
    files = {_write(storage, content): content for content in (b"first", b"other", b"first")}
    assert len(files) == 3
    folder = tmp_path / "demo" / "step-000000000001-1"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_of_what_is_left_aside_only_the_abandoned_goes(tmp_path):
    """A rank's next attempt removes what a killed writer has left of that rank; not what another
    writer is at, nor what is another rank's."""
    storage = DirectoryStorage(tmp_path / "demo")
    folder = tmp_path / "demo" / "step-000000000001-1"
    folder.mkdir(parents=True)
    abandoned, live, other = (
        folder / f"rank-0000{rank}.safetensors.{name}.part"
        for rank, name in ((0, "dead"), (0, "11fe"), (1, "dead"))
    )
    for path in (abandoned, other):
        path.write_bytes(b"half")
    writing = Syscalls().create(live)
    assert _write(storage, b"whole") == "rank-00000.safetensors"
    assert not abandoned.exists()
    assert live.exists()
    assert other.exists()
    os.close(writing)
    assert _write(storage, b"other bytes").startswith("rank-00000-")
    assert not live.exists()
    assert _write(storage, b"other bytes") in {path.name for path in folder.iterdir()}
    assert len(list(folder.iterdir())) == 3
