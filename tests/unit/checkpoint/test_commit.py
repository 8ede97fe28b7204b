# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which reports make a step durable, and which must not; what retention lets go."""

from __future__ import annotations

import dataclasses

from rover_kf.api.checkpoints import PersistAborted, RankPersisted
from rover_kf.checkpoint import commit
from rover_kf.checkpoint.commit import CommitLog, Committed
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.manifest import CheckpointFolder
from rover_kf.checkpoint.storage import retention
from tests.support.states import identities

BASE = RankPersisted(
    pod="p", rank=0, world_size=2, state=identities.state(10, 3), origin=identities.state(10, 3),
    replicated=False, file="rank-00000.safetensors", file_bytes=5, checksum=1,
)  # fmt: skip


def _report(
    ledger: CommitLog, step: int = 10, round_: int = 3, save: int = 1, **changes: object
) -> commit.CommitOutcome:
    state = identities.state(step, round_, save)
    named = {"state": state, "origin": state, **changes}
    return commit.report(ledger, dataclasses.replace(BASE, **named), owner="ns/job", now=7.0)


def test_a_step_is_complete_with_the_last_rank():
    """Nothing is committed before every rank reported; then the manifest names all files."""
    first = _report(CommitLog(), rank=1, file="rank-00001.safetensors", checksum=2)
    assert (first.accepted, first.manifest) == (True, None)
    last = _report(first.log)
    assert last.manifest is not None
    assert [(file.rank, file.checksum) for file in last.manifest.files] == [(0, 1), (1, 2)]
    found = last.manifest
    assert (found.owner, found.state, found.saved_at) == ("ns/job", identities.state(10, 3), 7.0)


def test_two_saves_of_one_step_are_two_states():
    """Rank 0 reports its first save, rank 1 its second: neither is whole."""
    first = _report(CommitLog())
    second = _report(first.log, save=2, rank=1)
    assert (second.accepted, second.manifest) == (True, None)
    whole = _report(second.log, save=2)
    assert whole.manifest is not None
    assert whole.manifest.state == identities.state(10, 3, 2)


def test_a_manifest_says_which_worlds_it_fits():
    """What ranks hold alike or in pieces fits any world, what each has of its own only the same."""
    verdict = _report(CommitLog(), world_size=1)
    assert verdict.manifest is not None
    separate = verdict.manifest
    assert [separate.fits(size) for size in (1, 2)] == [True, False]
    for kind in ("replicated", "pieces"):
        assert dataclasses.replace(separate, **{kind: True}).fits(2)


def test_a_rank_that_reports_twice_does_not_stand_for_two():
    """A duplicate replaces the report before; it completes nothing."""
    verdict = _report(_report(CommitLog()).log, checksum=9)
    assert verdict.manifest is None
    last = _report(verdict.log, rank=1)
    assert last.manifest is not None
    assert last.manifest.files[0].checksum == 9


def test_late_and_stale_reports_are_refused_with_the_reason():
    """Of a step behind the committed one, or of a round that is over."""
    done = _report(_report(CommitLog()).log, rank=1)
    state = identities.state(10, 3)
    ledger = commit.commit(done.log, Committed(state, state))
    assert not _report(ledger, step=9).accepted
    assert "late" in _report(ledger).reason
    assert _report(ledger, step=11).accepted
    newer = commit.begin_round(ledger, identities.round_id(4))
    assert "round 3 is over" in _report(newer, step=12).reason
    assert _report(newer, step=9, round_=4).accepted


def test_a_new_round_forgets_unfinished_steps():
    """A report of the old round and one of the new one never complete a step together."""
    ledger = commit.begin_round(_report(CommitLog()).log, identities.round_id(4))
    assert _report(ledger, rank=1, round_=4).manifest is None
    assert commit.begin_round(ledger, identities.round_id(3)) == ledger


def test_ranks_of_different_worlds_do_not_mix():
    """A report that names another world size is refused, as is a rank outside its world."""
    ledger = _report(CommitLog()).log
    assert "another state" in _report(ledger, rank=2, world_size=3).reason
    assert "another state" in _report(ledger, rank=1, origin=identities.state(10, 2)).reason
    for change in ({"replicated_crc": 9}, {"pieces": True}, {"replicated": True}):
        told = _report(ledger, rank=1, **change)
        assert told.is_mismatch
        assert "the same objects on every rank" in told.reason
    assert "not in a world" in _report(ledger, rank=2).reason


def _folders(*keys: tuple[int, int]) -> list[CheckpointFolder]:
    return [
        CheckpointFolder(
            identities.state(step, generation),
            manifest.folder_name(identities.state(step, generation)),
        )
        for generation, step in keys
    ]


def test_retention_keeps_the_newest_good_ones():
    """Older good ones go; unfinished ones of this round that are being written stay."""
    folders = _folders((1, 10), (1, 20), (2, 15), (2, 30), (2, 40))
    good = folders[:4]
    gone = retention.deletable(folders, good, keep=2, current=identities.round_id(2))
    assert [(f.state.round.number, f.step) for f in gone] == [(1, 10), (1, 20)]


def test_retention_never_removes_the_last_good_one():
    """Also with keep=0, and with damaged ones of a higher step or an older generation around."""
    folders = _folders((1, 10), (1, 90), (2, 5))
    assert retention.deletable(
        folders, [folders[2]], keep=0, current=identities.round_id(2)
    ) == tuple(folders[:2])
    assert retention.deletable(folders, [], keep=3, current=identities.round_id(9)) == ()


def test_leftovers_of_older_rounds_are_collected():
    """A folder without a manifest goes once nobody can be writing it."""
    folders = _folders((1, 99), (2, 10), (2, 20), (2, 30), (3, 1))
    gone = retention.deletable(folders, [folders[2]], keep=3, current=identities.round_id(2))
    assert [(f.state.round.number, f.step) for f in gone] == [(1, 99), (2, 10)]


def test_what_was_given_up_is_collected_where_nothing_is_good():
    """Without a manifest, of the running round, below the step that all have come to; a damaged one
    stays, and so does what an older round left."""
    folders = _folders((1, 10), (2, 10), (2, 20), (2, 30), (2, 40))
    unfinished = [folders[index] for index in (0, 1, 3, 4)]
    gone = retention.deletable(
        folders,
        [],
        unfinished,
        keep=3,
        current=identities.round_id(2),
        below=identities.state(40, 2),
    )
    assert [(f.state.round.number, f.step) for f in gone] == [(2, 10), (2, 30)]
    gone = retention.deletable(
        folders,
        [folders[1]],
        unfinished,
        keep=3,
        current=identities.round_id(2),
        below=identities.state(40, 2),
    )
    assert [(f.state.round.number, f.step) for f in gone] == [(1, 10), (2, 30)]


def test_all_have_come_to_a_step_that_they_report_or_give_up():
    """Of the newest step that was given up; in a world of unknown size nobody can tell."""
    told = PersistAborted(
        pod="p", rank=1, reason="full", pause_seconds=5.0, ranks=2, state=identities.state(10, 3)
    )
    ledger = commit.record_abort(CommitLog(), told)
    assert not commit.all_ranks_done(ledger, told)
    assert commit.all_ranks_done(_report(ledger).log, told)
    other = dataclasses.replace(told, rank=0)
    assert commit.all_ranks_done(commit.record_abort(ledger, other), other)
    newer = dataclasses.replace(other, state=identities.state(11, 3))
    assert not commit.all_ranks_done(commit.record_abort(ledger, newer), newer)
    unknown = dataclasses.replace(told, ranks=0)
    assert not commit.all_ranks_done(commit.record_abort(_report(ledger).log, unknown), unknown)
