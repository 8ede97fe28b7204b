# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a coordinator learns from storage at its start, also from one that does not answer."""

from __future__ import annotations

import asyncio
import threading

from rover_kf.checkpoint.commit import Committed
from rover_kf.checkpoint.format.manifest import Manifest, folder_name
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.coordinator.commit import storage_scan
from rover_kf.coordinator.commit.storage_scan import StorageScan
from tests.support.states import identities


class Hanging(DirectoryStorage):
    """As a folder on a file server that is gone: the call returns when the server is back."""

    back = threading.Event()

    def folders(self):
        self.back.wait()
        return super().folders()


def test_the_first_round_is_above_all_that_is_there(tmp_path):
    """Committed counts, and so do folders that no manifest ended."""
    storage = DirectoryStorage(tmp_path)
    assert asyncio.run(storage_scan.scan(storage)) == StorageScan(1)
    state = identities.state(5, 2)
    file = storage.write_rank(storage.folder(state), 0, [memoryview(b"state")], 5)
    storage.write_manifest(
        Manifest(
            "",
            state,
            state,
            world_size=1,
            replicated=True,
            files=(file,),
        )
    )
    (tmp_path / folder_name(identities.state(4, 6))).mkdir()
    assert asyncio.run(storage_scan.scan(storage)) == StorageScan(7, 0, Committed(state, state))


def test_a_storage_that_hangs_is_not_waited_for(tmp_path):
    """The coordinator's generation sets its rounds apart; what comes late changes nothing."""

    async def scene() -> StorageScan:
        found = await storage_scan.scan(Hanging(tmp_path), seconds=0.2)
        Hanging.back.set()
        return found

    found = asyncio.run(scene())
    assert (found.first_round, found.generation) == (1, 0)
    assert (found.committed, "not answered for 0.2 s" in found.error) == (None, True)


def test_a_storage_that_refuses_is_told(tmp_path):
    """The refusal's own words."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    found = asyncio.run(storage_scan.scan(DirectoryStorage(tmp_path / "loop")))
    assert (found.first_round, found.generation) == (1, 0)
    assert "loop cannot be listed" in found.error
