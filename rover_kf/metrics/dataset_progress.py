# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How far data sets are read whose samples nobody leases, put together from what ranks report."""

from __future__ import annotations

import collections
import dataclasses

from rover_kf.api.leases import DataStatus, WorkerShare
from rover_kf.api.samples import DataPlace, StepReport

WINDOW_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_MOST, _MOST_WORKERS = 16, 64


@dataclasses.dataclass(slots=True)
class _Known:
    """Of one data set, in one round."""

    newest: DataPlace
    """Of the rank that is farthest: ranks tell one after the other."""
    ranks: dict[int, DataPlace]
    looks: collections.deque[tuple[float, int]]
    """Samples since the first epoch, by when they were told."""


class Places:
    """One a coordinator."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def begin(self) -> None:
        """A round begins: its ranks may have gone back to a checkpoint."""
        self._known.clear()

    def heard(self, report: StepReport, now: float) -> None:
        """Take where a rank of the current round is.

        Args:
            report: of the rank.
            now: seconds of any steady clock.
        """
        for place in report.data[:_MOST]:
            known = self._known.get(place.name)
            if known is None:
                if len(self._known) >= _MOST:
                    continue
                known = _Known(place, {}, collections.deque([(now, _total(place))]))
                self._known[place.name] = known
            known.ranks[report.rank] = place
            if _total(place) > _total(known.newest):
                known.newest = place
            if now - known.looks[-1][0] >= _LOOK_SECONDS:
                known.looks.append((now, _total(known.newest)))
            while now - known.looks[0][0] > WINDOW_SECONDS and len(known.looks) > 1:
                known.looks.popleft()

    def status(self, now: float) -> tuple[DataStatus, ...]:
        """All data sets.

        Args:
            now: of the same clock.
        """
        return tuple(_status(known, now) for known in self._known.values())


def _status(known: _Known, now: float) -> DataStatus:
    place, (begun, before) = known.newest, known.looks[0]
    read = _total(place) - before
    rate = read / (now - begun) if now > begun else 0.0
    ranks = [(rank, at) for rank, at in known.ranks.items() if at.epoch == place.epoch]
    busy = sorted(ranks, key=lambda item: -item[1].taken)
    return DataStatus(
        name=place.name,
        epoch=place.epoch,
        epochs=0,
        slots=place.samples,
        done=place.done,
        outstanding=sum(at.ahead for at in known.ranks.values()),
        poisoned=0,
        rate=round(rate, 3),
        eta_seconds=round((place.samples - place.done) / rate, 1) if rate else None,
        workers=tuple(
            WorkerShare(str(rank), at.taken, at.ahead) for rank, at in busy[:_MOST_WORKERS]
        ),
    )


def _total(place: DataPlace) -> int:
    return place.epoch * place.samples + place.done
