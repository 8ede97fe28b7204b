# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a training process writes into its slot, in anonymous memory, and takes from it."""

from __future__ import annotations

import contextlib
import mmap

from rover_kf.checkpoint.format import snapshot
from rover_kf.trainer.restore import load
from rover_kf.trainer.staging import copy_batches, copy_threads
from rover_kf.trainer.state import tensor_views
from rover_kf.trainer.state.addresses import addresses
from rover_kf.trainer.state.flatten import FlatState
from tests.support.states import identities


def written(parts: FlatState) -> mmap.mmap:
    """A snapshot of a state that was taken apart."""
    layout = snapshot.plan(parts.entries(), parts.metadata)
    head = snapshot.header(layout, parts.metadata)
    assert head is not None
    buffer = mmap.mmap(-1, layout.length)
    buffer[: len(head)] = head
    targets = tensor_views.tensor_views(
        buffer, {place.entry.name: place for place in layout.tensors}
    )
    batches = copy_batches.batches(layout.tensors, parts.tensors, [targets], frozenset())
    tensors = [*parts.tensors.values()]
    source = copy_batches.CopySource(
        identities.state(1), tensors, addresses(tensors), on_device=False
    )
    for copy in copy_batches.copy_calls(batches, lambda: 0, source):
        copy()
    return buffer


def restored(buffer: mmap.mmap, live: dict[str, object], *, threads: int = 1) -> None:
    """Load a slot's snapshot into a state."""
    found = snapshot.read(memoryview(buffer))
    tensors = tensor_views.tensor_views(buffer, found.tensors)
    with contextlib.closing(copy_threads.CopyThreads(threads - 1)) as helping:
        load.StateLoader(live, found.metadata, tensors, threads=helping).finish()
