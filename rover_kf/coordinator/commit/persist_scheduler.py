# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which step all ranks shall persist now: one at a time, at the policy's pace; pure.

A step is named once every rank has sealed it, and the next one only when that one is committed or
given up: ranks that finish at different times must not go on to different steps.

Saves may follow each other quicker than an order travels. Every named state is overwritten then
before it is pinned. After two such give-ups the scheduler names a state that is yet to come. Each
rank pins its first state from that one on. All ranks save the same states, so they pin the same.
"""

from __future__ import annotations

import dataclasses
import math

from rover_kf.api.checkpoints import PersistOrder, PersistOrderRequest
from rover_kf.api.states import NO_STATE, State

_TRIES = 2
"""Orders that may come too late before a state that is yet to come is named."""
_PROMPT_TRIES = 12
"""Orders that may come too late before the policy's pace is kept between them."""
_RETRY_SECONDS = 5.0
"""Before a state that was given up is named again, where nothing newer was sealed."""
_LEAD_SECONDS, _MAX_LEAD_SECONDS = 0.25, 4.0
"""How long an order may travel at first, and at most; it doubles with each one that is late."""


@dataclasses.dataclass(slots=True)
class PersistScheduler:
    """The coordinator's choice.

    Args:
        persist_seconds: least time between two steps that are named; 0: as soon as the one before
            is finished.
        persist_steps: least steps from one that is named to the next; 0: any.
    """

    persist_seconds: float
    number: int = 0
    """Counts what was named; a coordinator that restarts begins above all that it had counted."""
    persist_steps: int = 0
    current: State | None = None
    """Under way."""
    upcoming: State | None = None
    """What current is as long as no rank has reported its first state from that one on."""
    keep_every: int = 0
    """A step that it divides stays on storage for good, so that it is named whatever the pace; 0:
    none."""
    _sealed: State | None = None
    _finished: State = NO_STATE
    _not_before: float = 0.0
    _last: State | None = None
    """Named last; None: whatever comes next is far enough from it."""
    _aborted: State | None = None
    """Given up last: it keeps the pause."""
    _first: State | None = None
    """What upcoming was, until the order ends."""
    _late: int = 0
    """Orders since the last commit that came after the state was overwritten."""
    _awaited: State = NO_STATE
    """The newest that somebody has waited for."""
    _overwritten: State | None = None
    """Given up last since newer saves replaced it: most likely nobody has it any more."""
    _retry_at: float = 0.0
    """When it is named again, if nothing newer has been sealed."""
    _reference: tuple[State, float] | None = None
    """Sealed when the last order was given, and monotonic seconds: the pace of saves."""

    def on_sealed(self, state: State) -> None:
        """Every rank has this state in memory."""
        self._sealed = max(state, self._sealed or state)

    def due(self, now: float, *, copying: State | None = None) -> State | None:
        """What is under way, or from now on.

        Args:
            now: monotonic seconds.
            copying: the step that peers copy. Its slots are pinned; to pin the others as well
                would stop training's saves, so no other step is named meanwhile.
        """
        sealed = self._sealed
        if sealed is None or sealed <= self._finished:
            return self.current
        if sealed == self._overwritten and now < self._retry_at:
            return self.current
        # Whoever waits for the newest state may save nothing meanwhile.
        saves = self._awaited < sealed
        is_late = saves and self._late >= _TRIES and self._late % 2 == 0
        free = self.current is None and copying in (None, None if is_late else sealed)
        in_pace = now >= self._not_before and not self._is_too_soon()
        if free and (in_pace or self._is_kept_step()):
            # Every other time: saves may have become slow, and the state never come.
            self.upcoming = self._first = self._next_upcoming(sealed, now) if is_late else None
            self.current = self._last = self.upcoming or sealed
            self._reference = sealed, now
            self.number += 1
            self._not_before = now + self.persist_seconds
        return self.current

    def _next_upcoming(self, sealed: State, now: float) -> State:
        """A state that every rank's sidecar hears of before the rank seals it."""
        before, then = self._reference or (sealed, now)
        steps = sealed.step - before.step if before.round == sealed.round else 0
        rate = max(steps, 0) / (now - then) if now > then else 0.0
        lead = min(_LEAD_SECONDS * 2 ** ((self._late - _TRIES) // 2), _MAX_LEAD_SECONDS)
        return State(sealed.round, sealed.step + 1 + math.ceil(rate * lead))

    def next_order(
        self, request: PersistOrderRequest, now: float, *, copying: State | None
    ) -> PersistOrder | None:
        """The answer to a sidecar, as soon as there is one.

        Args:
            request: by the sidecar.
            now: monotonic seconds.
            copying: as for ``due``.
        """
        named = self.due(now, copying=copying)
        if named is not None and self.number != request.after:
            return PersistOrder(self.number, named, upcoming=self.upcoming is not None)
        return PersistOrder(request.after, None) if request.pins_slots and named is None else None

    def expedite(self, state: State | None = None) -> None:
        """Do not keep the pace once.

        Args:
            state: that somebody waits for; nothing changes if it or a newer one is under way.
                None: whatever comes next.
        """
        if state is not None:
            self._awaited = max(state, self._awaited)
        if state is not None and self.upcoming is not None and state < self.upcoming:
            self._end_order()
            self._late = 1
        if state is None or self.current is None or self.current < state:
            self._not_before, self._last = 0.0, None

    def on_rank_persisted(self, state: State) -> None:
        """A rank's file of a state is on storage.

        Ranks that pinned different states for one order save different ones: it is given up.
        """
        if self._first is None or state < self._first:
            return
        if self.upcoming is not None:
            self.current, self.upcoming = state, None
        elif self.current != state:
            self._end_order()
            self._late += 1

    def on_committed(self, state: State) -> None:
        """The state is on storage, and with it every older one that was named."""
        self._finished = max(state, self._finished)
        if self.current is not None and self.current <= state:
            # An order that came in time by its lead gets a shorter one next.
            self._late = max(self._late - 2, _TRIES) if self._first else 0
            self._end_order()

    def aborted(self, state: State, *, now: float, pause: float) -> None:
        """A rank could not persist the step; another is named after the pause.

        Args:
            state: as it was named.
            now: monotonic seconds.
            pause: seconds.
        """
        is_upcoming = self._first is not None and state >= self._first
        if self.current is None or not (self.current == state or is_upcoming):
            return
        self._end_order()
        self._last, self._aborted = None, state
        if pause:
            self._not_before = max(self._not_before, now + pause)
            return
        if not is_upcoming:
            self._overwritten, self._retry_at = state, now + _RETRY_SECONDS
        self._late += 1
        if self._late <= _PROMPT_TRIES:
            self._not_before = now

    def _is_too_soon(self) -> bool:
        """Whether the newest step is too close behind the last one; a job may have gone back."""
        if self._sealed is None or self._last is None:
            return False
        return 0 <= self._sealed.step - self._last.step < self.persist_steps

    def _is_kept_step(self) -> bool:
        if self._sealed is None or self._sealed == self._aborted or not self.keep_every:
            return False
        return self._sealed.step % self.keep_every == 0

    def restart(self) -> None:
        """A new round: what was sealed before is given up or will be sealed again."""
        self._end_order()
        self._sealed = self._overwritten = self._reference = None
        self._awaited = NO_STATE
        self._late = 0

    def _end_order(self) -> None:
        self.current = self.upcoming = self._first = None
