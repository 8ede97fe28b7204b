# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Slots leased ahead of the loop, and reports after it, by a thread that training never waits for.

But where nothing is lent: at the begin, and when the coordinator is away for longer than what is
lent lasts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from rover_kf import errors
from rover_kf.api.data import MOST_AT_ONCE, Progress, Span
from rover_kf.api.leases import LeaseReply, Unread
from rover_kf.data_sharding.worker_view import Holder
from rover_kf.trainer.data.lease_client import Counter

_log = logging.getLogger("rover_kf")

_TELL_SECONDS = 0.2
"""Between two reports, while nothing is asked for."""
_IDLE_SECONDS = 0.05
"""Between two questions of one to whom nothing could be lent."""
_PULSE_SECONDS = 2.0
"""Between two questions of one that has all it needs: it is alive, and streams may have grown."""
_AWAY_SECONDS = 0.2
"""Before a coordinator is asked again that does not answer."""
PATIENCE_SECONDS = 300.0
"""How long a loop that has nothing to read waits for a coordinator that does not answer."""


class Leases:
    """One a data set and process.

    Args:
        holder: of its slots.
        desk: that lends them.
        progress: what the state has seen, told to a desk that does not know this process.
        ends: where streams end now.
        ahead: slots that shall always be lent.
    """

    def __init__(
        self,
        holder: Holder,
        desk: Counter,
        progress: Callable[[], Progress],
        ends: Callable[[], Mapping[str, int]],
        ahead: int,
    ) -> None:
        self._holder, self._desk = holder, desk
        self._progress, self._ends = progress, ends
        self._ahead = ahead
        self._changed = threading.Condition()
        self._error: errors.RoverError | None = None
        self._away: str = ""
        self._asked_at = self._told_at = float("-inf")
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="rover-leases", daemon=True)
        self._thread.start()

    # -- the loop's side --------------------------------------------------------------------------

    def take(self, most: int) -> Span | None:
        """The next slots; None: nothing can be lent now, or the epoch is over.

        Raises:
            RoverError: the coordinator refuses.
            SidecarUnavailable: nobody has answered for PATIENCE_SECONDS.
        """
        with self._changed:
            self._await()
            found = self._holder.take(most)
            if self._holder.lacking(self._ahead):
                self._changed.notify_all()
            return found

    def is_ready(self) -> bool:
        """Whether there is something to take.

        Raises:
            RoverError: as for take.
        """
        with self._changed:
            self._await()
            return bool(self._holder.queue)

    def _await(self) -> None:
        """Until there are slots, or an answer that there are none."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not (self._holder.queue or self._holder.finished):
            if self._error is not None:
                raise self._error
            if self._holder.idle:
                return
            if time.monotonic() > until:
                raise errors.SidecarUnavailable(
                    f"no slots of {self._holder.plan.name!r} could be leased for "
                    f"{PATIENCE_SECONDS:.0f} s: {self._away or 'not all ranks have registered'}"
                )
            self._changed.wait(0.5)

    @property
    def finished(self) -> bool:
        """Whether the epoch is over for all."""
        with self._changed:
            return self._holder.finished

    @property
    def poison(self) -> Mapping[str, str]:
        """What was set aside of the epoch."""
        with self._changed:
            return self._holder.poison

    def used(self, spans: Iterable[Span], *, but: Iterable[Span] = ()) -> None:
        """See Holder."""
        with self._changed:
            self._holder.used(spans, but=but)
            if self._holder.idle or self._holder.lacking(self._ahead):
                self._changed.notify_all()  # others may wait for this epoch's end

    def spoilt(self, records: Iterable[Unread]) -> None:
        """See Holder."""
        with self._changed:
            self._holder.spoilt(records)

    def unread(self, span: Span, reason: str) -> None:
        """See Holder."""
        with self._changed:
            self._holder.unread(span, reason)
            self._changed.notify_all()

    def give_back(self, spans: Iterable[Span] | None = None) -> None:
        """See Holder."""
        with self._changed:
            self._holder.give_back(spans)

    def turn(self) -> None:
        """The next epoch."""
        with self._changed:
            self._holder.turn()
            self._changed.notify_all()

    def follow(self) -> int:
        """Go back with a shared ledger that has gone back to a checkpoint's epoch.

        Returns:
            The epoch to read.
        """
        with self._changed:
            if self._holder.ledger_epoch < self._holder.epoch:
                self._holder.follow()
                self._changed.notify_all()
            return self._holder.epoch

    def flush(self, seconds: float) -> bool:
        """Wait until all that was used is told.

        Args:
            seconds: at most.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._holder.has_untold, seconds)

    def check(self) -> None:
        """Nothing, as long as the coordinator refuses nothing.

        Raises:
            RoverError: it does.
        """
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ask no more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._ended and (rest := self._rest()) > 0:
                    self._changed.wait(rest)
                if self._ended:
                    return
            try:
                self._exchange()
            except (errors.SidecarUnavailable, errors.ClusterUnavailable) as reason:
                self._wait_for(reason)
            except errors.RoverError as error:
                self._end(error)
                return
            except Exception as cause:  # noqa: BLE001 - the loop must hear of it, not wait
                mistake = errors.RoverError(f"a mistake in the lease thread: {cause!r}")
                mistake.__cause__ = cause
                self._end(mistake)
                return

    def _end(self, error: errors.RoverError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _rest(self) -> float:
        """Seconds until the next question."""
        holder, now = self._holder, time.monotonic()
        if not holder.registered:
            return 0.0
        pause = _PULSE_SECONDS
        if holder.lacking(self._ahead):
            pause = _IDLE_SECONDS if holder.idle else 0.0
        elif holder.has_news:
            pause = _TELL_SECONDS
        return self._asked_at + pause - now

    def _exchange(self) -> None:
        ends = self._ends()
        with self._changed:
            registration = None
            if not self._holder.registered:
                registration = self._holder.registration(self._progress())
        if registration is not None:
            told = self._desk.register(registration)
            with self._changed:
                self._holder.knows(told)
                if not self._holder.registered:
                    return  # again at once, with the ticket
        with self._changed:
            request = self._holder.request(self._wanted(), ends)
            self._asked_at = time.monotonic()
        reply = self._desk.ask(request)
        with self._changed:
            self._absorb(reply)

    def _wanted(self) -> int:
        lacking = self._holder.lacking(self._ahead)
        return min(-(-lacking // self._holder.plan.shard), MOST_AT_ONCE)

    def _absorb(self, reply: LeaseReply) -> None:
        self._holder.absorb(reply)
        if not reply.generation and self._holder.registered:
            self._changed.wait(_IDLE_SECONDS)  # the others have not registered yet
        if self._away:
            _log.warning("rover-kf: the coordinator answers again")
            self._away = ""
        self._changed.notify_all()

    def _wait_for(self, reason: errors.RoverError) -> None:
        with self._changed:
            if not self._away:
                _log.warning("rover-kf: no leases now: %s", reason)
            self._away = str(reason)
            self._changed.wait(_AWAY_SECONDS)
