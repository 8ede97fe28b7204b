# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether storage has to be asked at a restart."""

from __future__ import annotations

import pytest

from rover_kf import errors
from rover_kf.api.checkpoints import Holding, ResolveRequest
from rover_kf.checkpoint.directory_storage import DirectoryStorage
from rover_kf.sidecar import newest_stored


def _holds(step: int) -> list[ResolveRequest]:
    slot = Holding("pod-0", "10.0.0.1:7411", 0, 0, 1, step, True, 9, step, 1, False)  # noqa: FBT003 - a record
    return [ResolveRequest(5, 0, 1, (slot,) if step else ())]


@pytest.mark.parametrize(
    ("in_memory", "known", "asks"),
    [
        (20, 20, False),
        (20, 10, False),
        (20, 0, False),
        (20, 30, True),  # another pod has lost what was newer
        (20, None, True),  # storage did not answer when this coordinator began
        (0, 0, True),  # what is there was not seen by the ledger: nobody begins anew unasked
    ],
)
def test_storage_is_asked_where_it_may_be_newer(tmp_path, in_memory, known, asks):
    """The job's folder cannot be listed: who asks it is told, who need not ask restores."""
    (tmp_path / "job").write_text("no folder")
    told: list[str] = []
    storage, requests = DirectoryStorage(tmp_path / "job"), _holds(in_memory)
    if in_memory:
        found = newest_stored.choose(storage, requests, (), told.append, known)
        assert (found[0].step, found[0].source) == (in_memory, "memory")
    else:
        with pytest.raises(errors.StorageFailed):
            newest_stored.choose(storage, requests, (), told.append, known)
    assert bool(told) == asks
