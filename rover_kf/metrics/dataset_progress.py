# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How far data sets are read whose samples nobody leases, put together from what ranks report."""

from __future__ import annotations

import collections
import dataclasses

from rover_kf.api.data import DataStatus, WorkerShare
from rover_kf.api.samples import DataPosition, StepReport

WINDOW_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_MOST, _MOST_WORKERS = 16, 64


@dataclasses.dataclass(slots=True)
class _DatasetState:
    """Of one data set, in one round."""

    newest: DataPosition
    """Of the rank that is farthest: ranks tell one after the other."""
    ranks: dict[int, DataPosition]
    samples: collections.deque[tuple[float, int]]
    """Samples since the first epoch, by when they were told."""


class DatasetProgress:
    """One a coordinator."""

    def __init__(self) -> None:
        self._datasets: dict[str, _DatasetState] = {}

    def begin(self) -> None:
        """A round begins: its ranks may have gone back to a checkpoint."""
        self._datasets.clear()

    def on_report(self, report: StepReport, now: float) -> None:
        """Note where a rank of the current round is, by any steady clock."""
        for place in report.data[:_MOST]:
            known = self._datasets.get(place.name)
            if known is None:
                if len(self._datasets) >= _MOST:
                    continue
                known = _DatasetState(
                    place, {}, collections.deque([(now, _consumed_samples(place))])
                )
                self._datasets[place.name] = known
            known.ranks[report.rank] = place
            if _consumed_samples(place) > _consumed_samples(known.newest):
                known.newest = place
            if now - known.samples[-1][0] >= _LOOK_SECONDS:
                known.samples.append((now, _consumed_samples(known.newest)))
            while now - known.samples[0][0] > WINDOW_SECONDS and len(known.samples) > 1:
                known.samples.popleft()

    def status(self, now: float) -> tuple[DataStatus, ...]:
        """Return all data sets, by the same clock."""
        return tuple(_status(known, now) for known in self._datasets.values())


def _status(state: _DatasetState, now: float) -> DataStatus:
    place, (begun, before) = state.newest, state.samples[0]
    read = _consumed_samples(place) - before
    rate = read / (now - begun) if now > begun else 0.0
    ranks = [(rank, at) for rank, at in state.ranks.items() if at.epoch == place.epoch]
    busy = sorted(ranks, key=lambda item: -item[1].consumed)
    return DataStatus(
        name=place.name,
        epoch=place.epoch,
        epochs=0,
        slots=place.samples,
        done=place.done,
        outstanding=sum(at.prefetched for at in state.ranks.values()),
        poisoned=0,
        rate=round(rate, 3),
        eta_seconds=round((place.samples - place.done) / rate, 1) if rate else None,
        workers=tuple(
            WorkerShare(str(rank), at.consumed, at.prefetched) for rank, at in busy[:_MOST_WORKERS]
        ),
    )


def _consumed_samples(position: DataPosition) -> int:
    return position.epoch * position.samples + position.done
