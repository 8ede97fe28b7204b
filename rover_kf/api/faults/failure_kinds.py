# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Kinds of failures that spend a budget, and budgets of single kinds as a policy states them."""

from __future__ import annotations

from rover_kf import errors

HANG = "hang"
"""Of a round that the coordinator ends because no rank makes a step."""
BUDGETED_KINDS = frozenset(
    {
        "collective_timeout",
        "crashed",
        "data_loader_killed",
        "disk_full",
        "error",
        "exited",
        "gpu_assertion",
        "gpu_error",
        "gpu_hardware",
        "gpu_missing",
        "gpu_out_of_memory",
        HANG,
        "name_resolution",
        "nccl_error",
        "out_of_memory",
        "outside",
        "peer_lost",
        "process_killed",
        "shared_memory_full",
        "too_many_files",
        "usage_error",
        "user_error",
        "wrong_world_size",
    }
)
"""Those of docs/failures.md (Processes) that are not always free, and hangs."""
MAX_RESTARTS = 1_000_000
"""Restarts of one kind; as good as no bound."""


def parse_budgets(text: str) -> tuple[tuple[str, int], ...]:
    """Read ``disk_full:3,crashed:0`` as kinds and restarts, by kind.

    Raises:
        InputError: not of that form, a kind that spends nothing, or one that is stated twice.
    """
    found: dict[str, int] = {}
    for part in text.split(",") if text else ():
        kind, _, count = (piece.strip() for piece in part.partition(":"))
        if kind not in BUDGETED_KINDS:
            known = ", ".join(sorted(BUDGETED_KINDS))
            raise errors.InputError(f"{kind!r} is no kind of failure that spends; known: {known}")
        if not (count.isascii() and count.isdecimal()) or int(count) > MAX_RESTARTS:
            raise errors.InputError(f"{part!r}: a kind, a colon and restarts are needed: {kind}:3")
        if kind in found:
            raise errors.InputError(f"{kind} is stated twice")
        found[kind] = int(count)
    return tuple(sorted(found.items()))
