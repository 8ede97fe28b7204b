# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One step at a time is named for persisting, in the policy's pace."""

from __future__ import annotations

from rover_kf.api.checkpoints import PersistOrder, PersistOrderRequest
from rover_kf.api.states import State
from rover_kf.coordinator.commit.persist_scheduler import PersistScheduler
from tests.support.states import identities


def _s(round_: int, step: int) -> State:
    return identities.state(step, round_)


def test_one_step_at_a_time():
    """While a step is under way newer ones wait; then the newest is next, not the ones between."""
    naming = PersistScheduler(persist_seconds=0.0)
    assert naming.due(0.0) is None
    naming.on_sealed(_s(1, 10))
    assert (naming.due(0.0), naming.number) == (_s(1, 10), 1)
    naming.on_sealed(_s(1, 20))
    naming.on_sealed(_s(1, 30))
    assert (naming.due(9.0), naming.number) == (_s(1, 10), 1)
    naming.on_committed(_s(1, 10))
    assert (naming.due(9.0), naming.number) == (_s(1, 30), 2)


def test_the_pace_counts_from_begin_to_begin():
    """A step is not named sooner than the policy says, unless somebody waits for it."""
    naming = PersistScheduler(persist_seconds=60.0)
    naming.on_sealed(_s(1, 10))
    assert naming.due(100.0) == _s(1, 10)
    naming.on_committed(_s(1, 10))
    naming.on_sealed(_s(1, 20))
    assert naming.due(159.0) is None
    assert naming.due(160.0) == _s(1, 20)
    naming.on_committed(_s(1, 20))
    naming.on_sealed(_s(1, 30))
    naming.expedite()
    assert naming.due(161.0) == _s(1, 30)


def test_who_waits_for_what_is_under_way_hurries_nothing():
    """The next step keeps the pace: nobody waits for it."""
    naming = PersistScheduler(persist_seconds=60.0)
    naming.on_sealed(_s(1, 10))
    assert naming.due(100.0) == _s(1, 10)
    naming.expedite(_s(1, 10))
    naming.on_committed(_s(1, 10))
    naming.on_sealed(_s(1, 20))
    assert naming.due(101.0) is None
    naming.expedite(_s(1, 20))
    assert naming.due(101.0) == _s(1, 20)
    naming.on_sealed(_s(1, 30))
    naming.expedite(_s(1, 30))
    naming.on_committed(_s(1, 20))
    assert naming.due(102.0) == _s(1, 30)


def test_a_step_that_stays_for_good_keeps_no_pace():
    """Else the pace would pass most of them by. One that storage refuses keeps the pause."""
    naming = PersistScheduler(persist_seconds=60.0, persist_steps=500, keep_every=100)
    naming.on_sealed(_s(1, 50))
    assert naming.due(0.0) == _s(1, 50)
    naming.on_sealed(_s(1, 100))
    assert naming.due(1.0) == _s(1, 50)  # one at a time
    naming.on_committed(_s(1, 50))
    assert naming.due(1.0) == _s(1, 100)
    naming.on_committed(_s(1, 100))
    naming.on_sealed(_s(1, 150))
    assert naming.due(2.0) is None
    naming.on_sealed(_s(1, 200))
    assert naming.due(3.0) == _s(1, 200)
    naming.aborted(_s(1, 200), now=3.0, pause=90.0)
    assert naming.due(92.0) is None
    assert naming.due(93.0) == _s(1, 200)


def test_steps_lie_apart_as_the_policy_says():
    """In steps and in time; a job that has gone back, and whoever waits, keeps no distance."""
    naming = PersistScheduler(persist_seconds=5.0, persist_steps=100)
    naming.on_sealed(_s(1, 10))
    assert naming.due(0.0) == _s(1, 10)
    naming.on_committed(_s(1, 10))
    naming.on_sealed(_s(1, 100))
    assert naming.due(60.0) is None
    naming.on_sealed(_s(1, 110))
    assert naming.due(60.0) == _s(1, 110)
    naming.on_committed(_s(1, 110))
    naming.on_sealed(_s(1, 300))
    assert naming.due(64.0) is None
    naming.expedite()
    assert naming.due(64.0) == _s(1, 300)
    naming.on_committed(_s(1, 300))
    naming.restart()
    naming.on_sealed(_s(2, 250))
    assert naming.due(90.0) == _s(2, 250)
    naming.aborted(_s(2, 250), now=91.0, pause=1.0)
    assert naming.due(95.0) == _s(2, 250)


def test_no_other_step_is_named_while_peers_copy_one():
    """Two steps pinned at once would leave training no slot to save into."""
    naming = PersistScheduler(persist_seconds=0.0)
    naming.on_sealed(_s(1, 10))
    assert naming.due(0.0, copying=_s(1, 5)) is None
    assert naming.due(0.0, copying=_s(1, 10)) == _s(1, 10)


def test_what_is_durable_is_not_named_again():
    """A late word of a step that is on storage already names nothing."""
    naming = PersistScheduler(persist_seconds=0.0)
    naming.on_committed(_s(2, 40))
    naming.on_sealed(_s(2, 40))
    naming.on_sealed(_s(1, 90))
    assert naming.due(0.0) is None


def test_a_step_that_is_given_up_is_tried_again_after_the_pause():
    """The newest step is named then, under a new number, so that every rank looks again."""
    naming = PersistScheduler(persist_seconds=1.0)
    naming.on_sealed(_s(1, 10))
    naming.due(0.0)
    naming.aborted(_s(1, 7), now=0.0, pause=5.0)
    assert naming.due(0.0) == _s(1, 10)
    naming.aborted(_s(1, 10), now=0.0, pause=5.0)
    assert naming.due(4.9) is None
    assert (naming.due(5.0), naming.number) == (_s(1, 10), 2)


def test_a_new_round_begins_with_nothing():
    """What the old round had under way is nobody's business any more."""
    naming = PersistScheduler(persist_seconds=0.0)
    naming.on_sealed(_s(1, 10))
    naming.due(0.0)
    naming.restart()
    assert naming.due(1.0) is None
    naming.on_sealed(_s(2, 4))
    assert naming.due(1.0) == _s(2, 4)


def test_who_keeps_a_steps_slots_hears_that_it_is_finished():
    """Committed, given up or of a round that is over; others wait for the next step alone."""
    for finish in (
        lambda naming: naming.on_committed(_s(1, 10)),
        lambda naming: naming.aborted(_s(1, 10), now=0.0, pause=5.0),
        lambda naming: naming.restart(),
    ):
        naming = PersistScheduler(persist_seconds=1.0, number=7)
        naming.on_sealed(_s(1, 10))
        assert naming.next_order(PersistOrderRequest(7, 0.0), 0.0, copying=None) == PersistOrder(
            8, identities.state(10)
        )
        holding, waiting = (PersistOrderRequest(8, 0.0, pins_slots=held) for held in (True, False))
        assert naming.next_order(holding, 0.5, copying=None) is None
        finish(naming)
        assert naming.next_order(holding, 0.5, copying=None) == PersistOrder(8, None)
        assert naming.next_order(waiting, 0.5, copying=None) is None
        naming.on_sealed(_s(2, 20))
        assert naming.next_order(holding, 9.0, copying=None) == PersistOrder(
            9, identities.state(20, 2)
        )


def _late_twice(naming: PersistScheduler) -> None:
    """Two orders of states that were overwritten meanwhile; saves are 100 steps a second."""
    for step, now in ((10, 0.0), (20, 0.1)):
        naming.on_sealed(_s(1, step))
        assert naming.due(now) == _s(1, step)
        naming.aborted(_s(1, step), now=now, pause=0.0)
        assert naming.due(now) is None, "nobody has it any more"
    naming.on_sealed(_s(1, 30))


def test_after_two_late_orders_a_state_to_come_is_named():
    """As far ahead as training comes while an order travels; all at once, whatever the pace."""
    naming = PersistScheduler(persist_seconds=60.0)
    _late_twice(naming)
    first = _s(1, 30 + 1 + 25)
    order = naming.next_order(PersistOrderRequest(0, 0.0), 0.2, copying=None)
    assert order == PersistOrder(3, first, upcoming=True)
    naming.on_rank_persisted(_s(1, 60))
    assert naming.current == _s(1, 60)
    naming.on_committed(_s(1, 60))
    assert naming.current is None
    naming.on_sealed(_s(1, 70))
    assert naming.due(1.0) is None, "the pace counts between orders that came in time"
    assert naming.due(60.2) == _s(1, 70 + 1 + 1)
    assert naming.upcoming == _s(1, 72)


def test_a_state_that_somebody_waits_for_is_named_itself():
    """A script that waits for its last save makes no later one; once it saves on, one may come."""
    naming = PersistScheduler(persist_seconds=0.0)
    _late_twice(naming)
    naming.expedite(_s(1, 30))
    assert naming.due(0.2) == _s(1, 30)
    naming.aborted(_s(1, 30), now=0.3, pause=0.0)
    naming.on_sealed(_s(1, 40))
    assert naming.due(0.4) == _s(1, 40)
    naming.aborted(_s(1, 40), now=0.5, pause=0.0)
    naming.on_sealed(_s(1, 50))
    assert naming.due(0.6) > _s(1, 50)
    assert naming.upcoming is not None


def test_a_state_that_is_the_newest_for_long_is_named_again():
    """Training has ended: what was given up may be there all the same."""
    naming = PersistScheduler(persist_seconds=0.0)
    naming.on_sealed(_s(1, 10))
    assert naming.due(0.0) == _s(1, 10)
    naming.aborted(_s(1, 10), now=1.0, pause=0.0)
    assert naming.due(5.9) is None
    assert naming.due(6.0) == _s(1, 10)


def test_a_state_that_never_comes_is_followed_by_a_sealed_one():
    """Saves have become slow; then the lead is longer."""
    naming = PersistScheduler(persist_seconds=0.0)
    _late_twice(naming)
    named = naming.due(0.2)
    naming.aborted(named, now=10.2, pause=0.0)
    assert naming.due(10.2) == _s(1, 30)
    naming.aborted(_s(1, 30), now=10.2, pause=0.0)
    naming.on_sealed(_s(1, 130))
    assert naming.due(11.2) == _s(1, 130 + 1 + 50)


def test_ranks_that_pin_different_states_are_given_up():
    """They have saved different steps; what one of them wrote counts for nobody."""
    naming = PersistScheduler(persist_seconds=0.0)
    _late_twice(naming)
    assert naming.due(0.2) == _s(1, 56)
    naming.on_rank_persisted(_s(1, 55))
    naming.on_rank_persisted(_s(1, 56))
    naming.on_rank_persisted(_s(1, 57))
    assert naming.current is None


def test_who_waits_for_an_older_state_ends_the_wait_for_one_to_come():
    """It may save nothing until then."""
    naming = PersistScheduler(persist_seconds=0.0)
    _late_twice(naming)
    assert naming.due(0.2) == _s(1, 56)
    naming.expedite(_s(1, 30))
    assert naming.due(0.2) == _s(1, 30)
    assert naming.upcoming is None


def test_orders_that_stay_late_keep_the_policys_pace():
    """A reason that no lead helps must not be tried without a pause for ever."""
    naming, now, orders = PersistScheduler(persist_seconds=60.0), 0.0, 0
    while now < 59.0:
        naming.on_sealed(_s(1, 10 + round(100 * now)))
        if (named := naming.due(now)) is not None:
            orders += 1
            naming.aborted(named, now=now, pause=0.0)
        now += 1.0
    assert orders == 13
