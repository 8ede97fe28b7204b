# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory for snapshots: a pod's own, and what it keeps of other pods' state."""

from __future__ import annotations

from rover_kf.api.decisions import Quantity
from rover_kf.recommender.size_evidence import (
    GIB,
    MIB,
    SLOTS,
    SizeEvidence,
    from_samples,
    from_single,
    round_up_mib,
)

DEFAULT = GIB
MARGIN = 1.1


def recommend_arena(evidence: SizeEvidence) -> Quantity:
    """Bytes of all snapshots of a pod in memory."""
    ranks, slots = evidence.job.signature.processes_per_node, evidence.slots()
    sizes = evidence.snapshots()
    measured = evidence.profile.snapshot_bytes if evidence.profile is not None else None
    if sizes or measured:
        largest = max([sample.value for sample in sizes] or [float(measured or 0)])
        target = round_up_mib(largest * slots * ranks * MARGIN)
        size = f"{largest / MIB:.1f} MiB"
        why = f"{slots} slots of {size} for each of {ranks} processes, and 10 %"
        low = largest * slots * ranks
        if sizes:
            return from_samples("arena", target, (low, target * 1.25), sizes, why)
        return from_single("arena", target, (low, target * 1.5), "profile", why)
    if evidence.job.arena_bytes:
        stated = evidence.job.arena_bytes
        return from_single("arena", stated, (stated, stated), "manifest", "the annotation says so")
    given = evidence.job.requested.get("memory")
    if given:
        half = round_up_mib(given / 2)
        why = "half of the trainer's memory, until a run has shown the size of its snapshots"
        return from_single("arena", half, (half / 8, half * 2), "formula", why)
    why = "nothing is known of the state's size; the first checkpoint will tell"
    return from_single("arena", DEFAULT, (DEFAULT / 8, DEFAULT * 4), "default", why)


def recommend_replica_arena(evidence: SizeEvidence, arena: Quantity) -> Quantity:
    """Bytes of the arena in which a pod keeps another pod's state.

    Args:
        evidence: what is known.
        arena: the whole, as recommended.
    """
    layout, slots = evidence.layout(), evidence.slots()
    if layout is None:
        why = (
            "not known yet: nothing where all ranks hold the same (DDP); a third slot for each "
            "process, beside the arena's two, where state is sharded (FSDP, tensor parallel)"
        )
        most = arena.target / SLOTS
        return from_single("replica", 0.0, (0.0, most), "default", why)
    if layout.record.replicated:
        why = "a run alike held all of its state in every rank: nothing is copied to other pods"
        return from_single("replica", 0.0, (0.0, 0.0), "history", why, samples=layout.weight)
    target, low, high = (n / slots for n in (arena.target, arena.lower, arena.upper))
    why = (
        f"one of the arena's {slots} slots for each process holds a rank of another pod: a run "
        "alike had sharded state, which is lost with its pod otherwise"
    )
    return from_single("replica", target, (low, high), "history", why, samples=layout.weight)
