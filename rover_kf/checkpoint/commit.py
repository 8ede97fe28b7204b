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
from rover_kf.api.states import NO_ROUND, RoundId, State
from rover_kf.checkpoint.format.manifest import Manifest, RankFile


@dataclasses.dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint on storage."""

    state: State
    """As it is stored."""
    origin: State
    """As it was saved."""


@dataclasses.dataclass(frozen=True, slots=True)
class Resumed:
    """What a round resumed from."""

    round: RoundId
    state: State
    """As it was saved."""

    def covers(self, state: State) -> bool:
        """Whether a state of the round is no newer than what the round resumed from."""
        return state.round == self.round and state <= self.state.restored_in(self.round)


@dataclasses.dataclass(frozen=True, slots=True)
class CommitLog:
    """What ranks have reported and what is committed."""

    round: RoundId = NO_ROUND
    """That runs."""
    committed: Committed | None = None
    pending: Mapping[State, tuple[RankPersisted, ...]] = dataclasses.field(default_factory=dict)
    given_up: tuple[State | None, frozenset[int]] = (None, frozenset())
    """The state that was given up last, and by which ranks."""


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


def begin_round(log: CommitLog, current: RoundId) -> CommitLog:
    """A round starts: reports of older ones are stale from now on."""
    if current <= log.round:
        return log
    return dataclasses.replace(log, round=current, pending={})


def report(log: CommitLog, durable: RankPersisted, *, owner: str, now: float) -> CommitOutcome:
    """Take a rank's report.

    Args:
        log: as it is.
        durable: the rank's file is on storage.
        owner: ``namespace/name`` of the job, for the manifest.
        now: Unix seconds, for the manifest.
    """
    refusal = _rejection_reason(log, durable)
    if refusal:
        return CommitOutcome(log, accepted=False, reason=refusal)
    known = log.pending.get(durable.state, ())
    if known and _state_kind(known[0]) != _state_kind(durable):
        return _reject_mismatch(log, known[0], durable)
    # The newest report of a rank counts: its file stands beside the one before.
    reports = (*(item for item in known if item.rank != durable.rank), durable)
    moved = dataclasses.replace(
        log,
        round=max(log.round, durable.state.round),
        pending={**log.pending, durable.state: reports},
    )
    if len(reports) < durable.world_size:
        return CommitOutcome(moved, accepted=True)
    return CommitOutcome(moved, accepted=True, manifest=_manifest(reports, owner, now))


def commit(log: CommitLog, done: Committed) -> CommitLog:
    """It is on storage: older unfinished states of the round are given up."""
    newest = done if log.committed is None else max(done, log.committed, key=lambda c: c.state)
    pending = {state: reports for state, reports in log.pending.items() if state > newest.state}
    return dataclasses.replace(log, committed=newest, pending=pending)


def is_committed(log: CommitLog, state: State) -> bool:
    """Whether that state, or a newer one, is committed: nothing can make it so once more."""
    return log.committed is not None and state <= log.committed.state


def forget_committed(log: CommitLog) -> CommitLog:
    """The job went back behind the newest committed state: it was damaged and counts no more."""
    return dataclasses.replace(log, committed=None)


def record_abort(log: CommitLog, aborted: PersistAborted) -> CommitLog:
    """A rank has come to a state and cannot write it."""
    given_up = aborted.state, _aborted_ranks(log, aborted.state) | {aborted.rank}
    return dataclasses.replace(log, given_up=given_up)


def all_ranks_done(log: CommitLog, aborted: PersistAborted) -> bool:
    """Whether every rank has come to that state, to write it or to give it up.

    Each goes from step to step, so that nobody writes an older one any more.
    """
    wrote = {durable.rank for durable in log.pending.get(aborted.state, ())}
    return 0 < aborted.ranks <= len(_aborted_ranks(log, aborted.state) | wrote)


def _aborted_ranks(log: CommitLog, state: State) -> frozenset[int]:
    given_up, ranks = log.given_up
    return ranks if given_up == state else frozenset()


def _rejection_reason(log: CommitLog, durable: RankPersisted) -> str:
    if durable.state.round < log.round:
        return f"stale: round {durable.state.round} is over, round {log.round} runs"
    if log.committed is not None and is_committed(log, durable.state):
        return f"late: {log.committed.state} is committed already"
    if not 0 <= durable.rank < durable.world_size:
        return f"rank {durable.rank} is not in a world of {durable.world_size}"
    return ""


def _state_kind(durable: RankPersisted) -> tuple[object, ...]:
    return (
        durable.world_size,
        durable.replicated,
        durable.pieces,
        durable.replicated_crc,
        durable.origin,
    )


def _reject_mismatch(log: CommitLog, first: RankPersisted, durable: RankPersisted) -> CommitOutcome:
    """The refusal of a report that does not go together with the others."""
    if (first.world_size, first.origin) != (durable.world_size, durable.origin):
        reason = f"rank {durable.rank} has another state than the others in {durable.state}"
        return CommitOutcome(log, accepted=False, reason=reason)
    reason = (
        f"parameters or optimizer state of rank {durable.rank} are not those of rank "
        f"{first.rank} in name, type or shape; with DDP all ranks have the same. Give save the "
        "same objects on every rank, also what rank 0 alone uses (an average of weights), or "
        "make the Checkpointer with replicated=False where each has a model of its own"
    )
    return CommitOutcome(log, accepted=False, reason=reason, is_mismatch=True)


def _manifest(reports: tuple[RankPersisted, ...], owner: str, now: float) -> Manifest:
    first = reports[0]
    ordered = sorted(reports, key=lambda item: item.rank)
    return Manifest(
        owner=owner,
        state=first.state,
        origin=first.origin,
        world_size=first.world_size,
        replicated=first.replicated,
        files=tuple(
            RankFile(item.rank, item.file, item.file_bytes, item.checksum) for item in ordered
        ),
        saved_at=now,
        pieces=first.pieces,
        metrics=ordered[0].metrics,
    )
