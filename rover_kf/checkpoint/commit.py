# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""When a step on storage is whole: the coordinator's ledger of ranks' reports; pure.

A report is late (a newer step of its generation is committed), stale (of an older round),
duplicate, or one of those that complete a step. Only the last kind can lead to a manifest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rover_kf.api.checkpoints import Durable, GivenUp
from rover_kf.checkpoint.format.manifest import Manifest, RankFile

Key = tuple[int, int]
"""Generation, step."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ledger:
    """What ranks have reported and what is committed."""

    generation: int = 0
    """Number of the running round."""
    committed: Key | None = None
    pending: Mapping[Key, tuple[Durable, ...]] = dataclasses.field(default_factory=dict)
    given_up: tuple[Key, frozenset[int]] = ((0, 0), frozenset())
    """The step that was given up last, and by which ranks."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What a report came to."""

    ledger: Ledger
    accepted: bool
    reason: str = ""
    manifest: Manifest | None = None
    """To be written now; the ledger counts it as committed only after ``commit``."""
    unlike: bool = False
    """It was refused since ranks hold what does not go together: so are all that follow."""


def begin_round(ledger: Ledger, number: int) -> Ledger:
    """A round starts: reports of older ones are stale from now on."""
    if number <= ledger.generation:
        return ledger
    return dataclasses.replace(ledger, generation=number, pending={})


def report(ledger: Ledger, durable: Durable, *, now: float) -> Verdict:
    """Take a rank's report.

    Args:
        ledger: as it is.
        durable: the rank's file is on storage.
        now: Unix seconds, for the manifest.
    """
    refusal = _refusal(ledger, durable)
    if refusal:
        return Verdict(ledger, accepted=False, reason=refusal)
    key = (durable.round, durable.step)
    known = ledger.pending.get(key, ())
    if known and _shape(known[0]) != _shape(durable):
        return _other(ledger, known[0], durable)
    # The newest report of a rank counts: its file stands beside the one before.
    reports = (*(item for item in known if item.rank != durable.rank), durable)
    moved = dataclasses.replace(
        ledger,
        generation=max(ledger.generation, durable.round),
        pending={**ledger.pending, key: reports},
    )
    if len(reports) < durable.world_size:
        return Verdict(moved, accepted=True)
    if not _is_whole(reports):
        # Such as pods that do not agree on whether they keep alike tensors once.
        shares = {item.rank: item.ranks for item in reports}
        reason = (
            f"shares of the tensors that ranks hold alike are lacking, or twice there: {shares}"
        )
        return Verdict(moved, accepted=False, reason=reason, unlike=True)
    return Verdict(moved, accepted=True, manifest=_manifest(reports, now))


def commit(ledger: Ledger, manifest: Manifest) -> Ledger:
    """The manifest is on storage: older unfinished steps of the generation are given up."""
    key = (manifest.generation, manifest.step)
    newest = max(key, ledger.committed or key)
    pending = {item: reports for item, reports in ledger.pending.items() if item > newest}
    return dataclasses.replace(ledger, committed=newest, pending=pending)


def is_committed(ledger: Ledger, key: Key) -> bool:
    """Whether that step, or a newer one, is committed: nothing can make it so once more."""
    return ledger.committed is not None and key <= ledger.committed


def forget_committed(ledger: Ledger) -> Ledger:
    """The job went back behind the newest committed step: it was damaged and counts no more."""
    return dataclasses.replace(ledger, committed=None)


def give_up(ledger: Ledger, told: GivenUp) -> Ledger:
    """A rank has come to a step and cannot write it."""
    key = (told.round, told.step)
    given_up = key, _gave_up(ledger, key) | {told.rank}
    return dataclasses.replace(ledger, given_up=given_up)


def have_all_come(ledger: Ledger, told: GivenUp) -> bool:
    """Whether every rank has come to that step, to write it or to give it up.

    Each goes from step to step, so that nobody writes an older one any more.
    """
    key = (told.round, told.step)
    wrote = {durable.rank for durable in ledger.pending.get(key, ())}
    return 0 < told.ranks <= len(_gave_up(ledger, key) | wrote)


def _gave_up(ledger: Ledger, key: Key) -> frozenset[int]:
    step, ranks = ledger.given_up
    return ranks if step == key else frozenset()


def _refusal(ledger: Ledger, durable: Durable) -> str:
    if durable.round < ledger.generation:
        return f"stale: round {durable.round} is over, round {ledger.generation} runs"
    if ledger.committed is not None and (durable.round, durable.step) <= ledger.committed:
        return f"late: step {ledger.committed[1]} is committed already"
    if not 0 <= durable.rank < durable.world_size:
        return f"rank {durable.rank} is not in a world of {durable.world_size}"
    return ""


def _shape(durable: Durable) -> tuple[int, ...]:
    return (
        durable.world_size,
        durable.replicated,
        durable.pieces,
        durable.common,
        durable.course,
    )


def _other(ledger: Ledger, first: Durable, durable: Durable) -> Verdict:
    """The refusal of a report that does not go together with the others."""
    if (first.world_size, first.course) != (durable.world_size, durable.course):
        reason = f"rank {durable.rank} has another state than the others at step {durable.step}"
        return Verdict(ledger, accepted=False, reason=reason)
    reason = (
        f"parameters or optimizer state of rank {durable.rank} are not those of rank "
        f"{first.rank} in name, type or shape; with DDP all ranks have the same. Give save the "
        "same objects on every rank, also what rank 0 alone uses (an average of weights), or "
        "make the Checkpointer with replicated=False where each has a model of its own"
    )
    return Verdict(ledger, accepted=False, reason=reason, unlike=True)


def _is_whole(reports: tuple[Durable, ...]) -> bool:
    """Whether each rank's share of the shared tensors is in one file."""
    written = [rank for item in reports for rank in range(item.rank, item.rank + item.ranks)]
    return sorted(written) == list(range(reports[0].world_size))


def _manifest(reports: tuple[Durable, ...], now: float) -> Manifest:
    first = reports[0]
    ordered = sorted(reports, key=lambda item: item.rank)
    return Manifest(
        step=first.step,
        generation=first.round,
        world_size=first.world_size,
        replicated=first.replicated,
        files=tuple(
            RankFile(item.rank, item.file, item.file_bytes, item.checksum) for item in ordered
        ),
        saved_at=now,
        pieces=first.pieces,
        metrics=ordered[0].metrics,
    )
