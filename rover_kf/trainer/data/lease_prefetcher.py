# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A thread that leases slots ahead of the loop and reports after it.

Training waits at the begin, and when the coordinator is away for longer than the leased slots last.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from rover_kf import errors
from rover_kf.api.data import (
    MAX_SPANS_PER_REQUEST,
    DataProgress,
    LeaseReply,
    SlotSpan,
    UnreadableSpan,
)
from rover_kf.data_sharding.worker_view import LeaseTracker
from rover_kf.trainer.data.lease_client import LeaseClient

_log = logging.getLogger("rover_kf")

_REPORT_SECONDS = 0.2
"""Between two reports, while nothing is asked for."""
_IDLE_SECONDS = 0.05
"""Between two questions of one to whom nothing could be lent."""
_PULSE_SECONDS = 2.0
"""Between two questions of one that has all it needs: it is alive, and streams may have grown."""
_AWAY_SECONDS = 0.2
"""Before a coordinator is asked again that does not answer."""
PATIENCE_SECONDS = 300.0
"""How long a loop that has nothing to read waits for a coordinator that does not answer."""


class LeasePrefetcher:
    """A thread that leases slots of one data set ahead of the training loop.

    ``ahead`` slots are leased at any time. A coordinator that does not know this process gets
    ``progress``. ``ends`` returns where streams end now.
    """

    def __init__(
        self,
        tracker: LeaseTracker,
        client: LeaseClient,
        progress: Callable[[], DataProgress],
        ends: Callable[[], Mapping[str, int]],
        ahead: int,
    ) -> None:
        self._tracker, self._client = tracker, client
        self._progress, self._ends = progress, ends
        self._ahead = ahead
        self._changed = threading.Condition()
        self._error: errors.RoverError | None = None
        self._away: str = ""
        self._requested_at = self._reported_at = float("-inf")
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="rover-leases", daemon=True)
        self._thread.start()

    # -- the loop's side --------------------------------------------------------------------------

    def claim(self, max_slots: int) -> SlotSpan | None:
        """Return the next slots; None: none can be leased now, or the epoch is over.

        Raises:
            RoverError: the coordinator refuses.
            SidecarUnavailable: nobody has answered for PATIENCE_SECONDS.
        """
        with self._changed:
            self._wait_for_slots()
            found = self._tracker.claim(max_slots)
            if self._tracker.missing_slots(self._ahead):
                self._changed.notify_all()
            return found

    def is_ready(self) -> bool:
        """Return whether ``claim`` has slots; raises as that does."""
        with self._changed:
            self._wait_for_slots()
            return bool(self._tracker.queue)

    def _wait_for_slots(self) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not (self._tracker.queue or self._tracker.finished):
            if self._error is not None:
                raise self._error
            if self._tracker.idle:
                return
            if time.monotonic() > until:
                raise errors.SidecarUnavailable(
                    f"no slots of {self._tracker.plan.name!r} could be leased for "
                    f"{PATIENCE_SECONDS:.0f} s: {self._away or 'not all ranks have registered'}"
                )
            self._changed.wait(0.5)

    @property
    def finished(self) -> bool:
        """Whether the epoch is over for all."""
        with self._changed:
            return self._tracker.finished

    @property
    def poison(self) -> Mapping[str, str]:
        """What was set aside of the epoch."""
        with self._changed:
            return self._tracker.poison

    def mark_used(self, spans: Iterable[SlotSpan], *, but: Iterable[SlotSpan] = ()) -> None:
        """See LeaseTracker."""
        with self._changed:
            self._tracker.mark_used(spans, returned=but)
            if self._tracker.idle or self._tracker.missing_slots(self._ahead):
                self._changed.notify_all()  # others may wait for this epoch's end

    def report_unusable(self, records: Iterable[UnreadableSpan]) -> None:
        """See LeaseTracker."""
        with self._changed:
            self._tracker.report_unusable(records)

    def report_unreadable(self, span: SlotSpan, reason: str) -> None:
        """See LeaseTracker."""
        with self._changed:
            self._tracker.report_unreadable(span, reason)
            self._changed.notify_all()

    def release(self, spans: Iterable[SlotSpan] | None = None) -> None:
        """See LeaseTracker."""
        with self._changed:
            self._tracker.return_spans(spans)

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        with self._changed:
            self._tracker.next_epoch()
            self._changed.notify_all()

    def follow_ledger(self) -> int:
        """Return the epoch to read: a shared ledger may be back at an older one."""
        with self._changed:
            if self._tracker.ledger_epoch < self._tracker.epoch:
                self._tracker.rejoin_ledger()
                self._changed.notify_all()
            return self._tracker.epoch

    def flush(self, seconds: float) -> bool:
        """Wait for the acknowledgment of all that was used, for so many seconds at most."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._tracker.has_unacknowledged, seconds)

    def check(self) -> None:
        """Raise what the coordinator refused.

        Raises:
            RoverError: it does.
        """
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._ended and (rest := self._seconds_to_next_request()) > 0:
                    self._changed.wait(rest)
                if self._ended:
                    return
            try:
                self._exchange()
            except (errors.SidecarUnavailable, errors.ClusterUnavailable) as reason:
                self._back_off(reason)
            except errors.RoverError as error:
                self._fail(error)
                return
            except Exception as cause:  # noqa: BLE001 - the loop must hear of it, not wait
                mistake = errors.RoverError(f"a mistake in the lease thread: {cause!r}")
                mistake.__cause__ = cause
                self._fail(mistake)
                return

    def _fail(self, error: errors.RoverError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _seconds_to_next_request(self) -> float:
        holder, now = self._tracker, time.monotonic()
        if not holder.registered:
            return 0.0
        pause = _PULSE_SECONDS
        if holder.missing_slots(self._ahead):
            pause = _IDLE_SECONDS if holder.idle else 0.0
        elif holder.has_reports:
            pause = _REPORT_SECONDS
        return self._requested_at + pause - now

    def _exchange(self) -> None:
        ends = self._ends()
        with self._changed:
            registration = None
            if not self._tracker.registered:
                registration = self._tracker.registration(self._progress())
        if registration is not None:
            told = self._client.register(registration)
            with self._changed:
                self._tracker.on_registered(told)
                if not self._tracker.registered:
                    return  # again at once, with the ticket
        with self._changed:
            shards = -(-self._tracker.missing_slots(self._ahead) // self._tracker.plan.shard)
            request = self._tracker.request(min(shards, MAX_SPANS_PER_REQUEST), ends)
            self._requested_at = time.monotonic()
        reply = self._client.exchange(request)
        with self._changed:
            self._absorb(reply)

    def _absorb(self, reply: LeaseReply) -> None:
        self._tracker.on_reply(reply)
        if not reply.generation and self._tracker.registered:
            self._changed.wait(_IDLE_SECONDS)  # the others have not registered yet
        if self._away:
            _log.warning("rover-kf: the coordinator answers again")
            self._away = ""
        self._changed.notify_all()

    def _back_off(self, reason: errors.RoverError) -> None:
        with self._changed:
            if not self._away:
                _log.warning("rover-kf: no leases now: %s", reason)
            self._away = str(reason)
            self._changed.wait(_AWAY_SECONDS)
