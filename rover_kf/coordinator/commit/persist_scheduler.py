# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which step all ranks shall persist now: one at a time, at the policy's pace; pure.

A step is named once every rank has sealed it, and the next one only when that one is committed or
given up: ranks that finish at different times must not go on to different steps.
"""

from __future__ import annotations

import dataclasses

from rover_kf.api.checkpoints import PersistOrder, PersistOrderRequest
from rover_kf.api.states import NO_STATE, State


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
        new = self._sealed is not None and self._sealed > self._finished
        free = self.current is None and copying in (None, self._sealed)
        in_pace = now >= self._not_before and not self._is_too_soon()
        if new and free and (in_pace or self._is_kept_step()):
            self.current = self._last = self._sealed
            self.number += 1
            self._not_before = now + self.persist_seconds
        return self.current

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
            return PersistOrder(self.number, named)
        return PersistOrder(request.after, None) if request.pins_slots and named is None else None

    def expedite(self, state: State | None = None) -> None:
        """Do not keep the pace once.

        Args:
            state: that somebody waits for; nothing changes if it or a newer one is under way.
                None: whatever comes next.
        """
        if state is None or self.current is None or self.current < state:
            self._not_before, self._last = 0.0, None

    def on_committed(self, state: State) -> None:
        """The state is on storage, and with it every older one that was named."""
        self._finished = max(state, self._finished)
        if self.current is not None and self.current <= state:
            self.current = None

    def aborted(self, state: State, *, now: float, pause: float) -> None:
        """A rank could not persist the step; another is named after the pause.

        Args:
            state: as it was named.
            now: monotonic seconds.
            pause: seconds.
        """
        if self.current == state:
            self.current = self._last = None
            self._aborted = state
            self._not_before = max(self._not_before, now + pause)

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
        self.current = self._sealed = None
