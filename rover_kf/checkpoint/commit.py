# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""When a step on storage is whole: the coordinator's ledger of ranks' reports; pure.

A report is late (a newer step of its generation is committed), stale (of an older round),
duplicate, or one of those that complete a step. Only the last kind can lead to a manifest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rover_kf.api.checkpoints import PersistAborted, RankPersisted
from rover_kf.checkpoint.format.manifest import Manifest, RankFile

Key = tuple[int, int]
"""Generation, step."""


@dataclasses.dataclass(frozen=True, slots=True)
class CommitLog:
    """What ranks have reported and what is committed."""

    generation: int = 0
    """Number of the running round."""
    committed: Key | None = None
    pending: Mapping[Key, tuple[RankPersisted, ...]] = dataclasses.field(default_factory=dict)
    given_up: tuple[Key, frozenset[int]] = ((0, 0), frozenset())
    """The step that was given up last, and by which ranks."""


@dataclasses.dataclass(frozen=True, slots=True)
class CommitOutcome:
    """What a report came to."""

    log: CommitLog
    accepted: bool
    reason: str = ""
    manifest: Manifest | None = None
    """To be written now; the ledger counts it as committed only after ``commit``."""
    is_mismatch: bool = False
    """It was refused since ranks hold what does not go together: so are all that follow."""


def begin_round(log: CommitLog, number: int) -> CommitLog:
    """A round starts: reports of older ones are stale from now on."""
    if number <= log.generation:
        return log
    return dataclasses.replace(log, generation=number, pending={})


def report(log: CommitLog, durable: RankPersisted, *, now: float) -> CommitOutcome:
    """Take a rank's report.

    Args:
        log: as it is.
        durable: the rank's file is on storage.
        now: Unix seconds, for the manifest.
    """
    refusal = _rejection_reason(log, durable)
    if refusal:
        return CommitOutcome(log, accepted=False, reason=refusal)
    key = (durable.round, durable.step)
    known = log.pending.get(key, ())
    if known and _state_kind(known[0]) != _state_kind(durable):
        return _reject_mismatch(log, known[0], durable)
    # The newest report of a rank counts: its file stands beside the one before.
    reports = (*(item for item in known if item.rank != durable.rank), durable)
    moved = dataclasses.replace(
        log,
        generation=max(log.generation, durable.round),
        pending={**log.pending, key: reports},
    )
    if len(reports) < durable.world_size:
        return CommitOutcome(moved, accepted=True)
    return CommitOutcome(moved, accepted=True, manifest=_manifest(reports, now))


def commit(log: CommitLog, manifest: Manifest) -> CommitLog:
    """The manifest is on storage: older unfinished steps of the generation are given up."""
    key = (manifest.generation, manifest.step)
    newest = max(key, log.committed or key)
    pending = {item: reports for item, reports in log.pending.items() if item > newest}
    return dataclasses.replace(log, committed=newest, pending=pending)


def is_committed(log: CommitLog, key: Key) -> bool:
    """Whether that step, or a newer one, is committed: nothing can make it so once more."""
    return log.committed is not None and key <= log.committed


def forget_committed(log: CommitLog) -> CommitLog:
    """The job went back behind the newest committed step: it was damaged and counts no more."""
    return dataclasses.replace(log, committed=None)


def record_abort(log: CommitLog, aborted: PersistAborted) -> CommitLog:
    """A rank has come to a step and cannot write it."""
    key = (aborted.round, aborted.step)
    given_up = key, _aborted_ranks(log, key) | {aborted.rank}
    return dataclasses.replace(log, given_up=given_up)


def all_ranks_done(log: CommitLog, aborted: PersistAborted) -> bool:
    """Whether every rank has come to that step, to write it or to give it up.

    Each goes from step to step, so that nobody writes an older one any more.
    """
    key = (aborted.round, aborted.step)
    wrote = {durable.rank for durable in log.pending.get(key, ())}
    return 0 < aborted.ranks <= len(_aborted_ranks(log, key) | wrote)


def _aborted_ranks(log: CommitLog, key: Key) -> frozenset[int]:
    step, ranks = log.given_up
    return ranks if step == key else frozenset()


def _rejection_reason(log: CommitLog, durable: RankPersisted) -> str:
    if durable.round < log.generation:
        return f"stale: round {durable.round} is over, round {log.generation} runs"
    if log.committed is not None and (durable.round, durable.step) <= log.committed:
        return f"late: step {log.committed[1]} is committed already"
    if not 0 <= durable.rank < durable.world_size:
        return f"rank {durable.rank} is not in a world of {durable.world_size}"
    return ""


def _state_kind(durable: RankPersisted) -> tuple[int, ...]:
    return (
        durable.world_size,
        durable.replicated,
        durable.pieces,
        durable.replicated_crc,
        durable.origin_round,
    )


def _reject_mismatch(log: CommitLog, first: RankPersisted, durable: RankPersisted) -> CommitOutcome:
    """The refusal of a report that does not go together with the others."""
    if (first.world_size, first.origin_round) != (durable.world_size, durable.origin_round):
        reason = f"rank {durable.rank} has another state than the others at step {durable.step}"
        return CommitOutcome(log, accepted=False, reason=reason)
    reason = (
        f"parameters or optimizer state of rank {durable.rank} are not those of rank "
        f"{first.rank} in name, type or shape; with DDP all ranks have the same. Give save the "
        "same objects on every rank, also what rank 0 alone uses (an average of weights), or "
        "make the Checkpointer with replicated=False where each has a model of its own"
    )
    return CommitOutcome(log, accepted=False, reason=reason, is_mismatch=True)


def _manifest(reports: tuple[RankPersisted, ...], now: float) -> Manifest:
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
