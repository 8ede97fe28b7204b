# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a process that was killed has left of its embedded jobs."""

from __future__ import annotations

import contextlib

from rover_kf import errors
from rover_kf.cluster.local.operator import mark_failed
from rover_kf.cluster.local.store import Store


def clean_orphans(store: Store) -> None:
    """Settle jobs whose process was killed: they have failed, their memory is swept."""
    for key in store.jobs():
        owner = store.acquire_owner(key)
        if owner is None:
            continue
        # The process that ran it may have removed it since it was listed.
        with owner, contextlib.suppress(errors.NoSuchJob):
            if store.read(key).deleting:
                store.remove(key)
            else:
                store.update(key, mark_failed)
                store.sweep(key)
