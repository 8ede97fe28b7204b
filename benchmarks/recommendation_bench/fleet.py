# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of a made-up fleet: what its users ask for against what would have been recommended.

No public trace tells the memory of training jobs, so the fleet is generated:

- Which scripts run, and in which order, comes from the tables
  ``workloads-realistic/*.csv`` (application, batch) where they are given, else from a Zipf draw
  over 24 scripts. A script is an application at a batch.
- A script's peak is 1 to 48 GiB, log-uniform; each run's differs by a log-normal of 6 % (data,
  allocator), and one script in eight grows by 2 % from run to run (its data set does), to twice.
- Users ask for their script's first peak times a log-normal factor with median 1.85 and sigma 0.4,
  once for each script: a median slack of 46 %, as published for limits set by hand on a large
  fleet, and 6 in 100 too little. A run that is killed for memory is tried again with twice of it,
  and so are the script's later runs.
- The history has every run that ended before. A script's first run is preceded by a dry run in one
  of two cases, whose peak is off by a log-normal of 5 %; in the others the user's request stands.

Waste is what was asked for and not used over all that was asked for; a run that is killed counts as
one kill, and its killed tries are not in the waste.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import pathlib
import random
from collections.abc import Iterator

from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.recommender.job_signature import JobFacts
from rover_kf.recommender.profile import MemoryFootprint, Profile, Trial
from rover_kf.recommender.recommend import combine_evidence

GIB = 1 << 30
RUNS, SCRIPTS = 1280, 24
HOUR = 3600.0
ASKED, ASKED_SIGMA = 1.85, 0.4
NOISE, DRY_NOISE, GROWTH, MOST_GROWTH = 0.06, 0.05, 0.02, 2.0
MOST_TRIES = 4


@dataclasses.dataclass(frozen=True)
class Script:
    """What a script needs and what its user believes that it needs."""

    name: str
    peak: float
    asked: float
    grows: bool
    tried: bool
    """Whether a dry run precedes the first run."""


@dataclasses.dataclass
class Account:
    """Sums over a fleet."""

    asked: float = 0.0
    used: float = 0.0
    runs: int = 0
    kills: int = 0

    def add(self, asked: float, peak: float) -> bool:
        """A run with that request; whether it was enough."""
        self.runs += 1
        enough = asked >= peak
        self.kills += not enough
        if enough:
            self.asked += asked
            self.used += peak
        return enough

    def told(self) -> dict[str, float]:
        """For the file."""
        return {"waste": 1 - self.used / self.asked, "oom_rate": self.kills / self.runs}


def measure(traces: pathlib.Path | None, fleets: int = 20) -> dict[str, object]:
    """Users and recommender over the same runs of so many fleets."""
    users, ours, first = Account(), Account(), Account()
    for seed in range(fleets):
        draw = random.Random(seed)  # noqa: S311 - a generator of cases, not of secrets
        _run(traces, draw, users, ours, first)
    return {
        "fleets": fleets,
        "runs": users.runs,
        "users": users.told(),
        "recommended": ours.told(),
        "recommended_first_run": first.told(),
        "generator": (__doc__ or "").strip(),
    }


def _run(
    traces: pathlib.Path | None,
    draw: random.Random,
    users: Account,
    ours: Account,
    first: Account,
) -> None:
    scripts: dict[str, Script] = {}
    seen: dict[str, list[RunRecord]] = {}
    stated: dict[str, float] = {}
    for number, name in enumerate(_names(traces, draw)):
        script = scripts.setdefault(name, _script(name, draw))
        past = seen.setdefault(name, [])
        growth = min(MOST_GROWTH, (1 + GROWTH) ** len(past)) if script.grows else 1.0
        peak = script.peak * growth * math.exp(draw.gauss(0, NOISE))
        stated[name] = _enough(users, stated.get(name, script.asked), peak)
        users.add(stated[name], peak)
        asked = _recommended(script, past, number * HOUR, draw)
        if not past:
            first.add(asked, peak)
        asked = _enough(ours, asked, peak)
        ours.add(asked, peak)
        past.append(_record(script, number, asked, peak))


def _enough(account: Account, asked: float, peak: float) -> float:
    """The request of the try that ended well; kills are counted."""
    for _ in range(MOST_TRIES):
        if asked >= peak:
            break
        account.kills += 1
        asked *= 2
    return asked


def _names(traces: pathlib.Path | None, draw: random.Random) -> Iterator[str]:
    folder = None if traces is None else next(traces.glob("**/workloads-realistic"), None)
    if folder is None:
        weights = [1 / (rank + 1) for rank in range(SCRIPTS)]
        yield from (f"script-{i}" for i in draw.choices(range(SCRIPTS), weights, k=RUNS))
        return
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield f"{row['application']}-{row['batch_size']}"


def _script(name: str, draw: random.Random) -> Script:
    peak = GIB * math.exp(draw.uniform(0, math.log(48)))
    asked = peak * ASKED * math.exp(draw.gauss(0, ASKED_SIGMA))
    return Script(name, peak, asked, draw.random() < 1 / 8, draw.random() < 1 / 2)


def _recommended(script: Script, past: list[RunRecord], now: float, draw: random.Random) -> float:
    facts = JobFacts(
        signature=_signature(script),
        requested={"replicas": 1.0, "memory": script.asked},
        masters=0,
        min_replicas=1,
        max_replicas=1,
        checkpoint_every=50,
        states_every=False,
    )
    profile = None
    if script.tried and not past:
        profile = _dry(script.peak * math.exp(draw.gauss(0, DRY_NOISE)))
    found = combine_evidence(facts, past[-50:], profile, now=now).get("memory")
    if found is None:
        raise AssertionError(script)
    return found.target


def _dry(peak: float) -> Profile:
    footprint = MemoryFootprint(anonymous=int(0.95 * peak), files=int(0.05 * peak))
    trial = Trial(32, 1.0, 0.0, 1.0, footprint=footprint)
    return Profile(10.0, True, int(peak), 10.0, trials=(trial,), footprint=footprint)  # noqa: FBT003 - as above


def _signature(script: Script) -> JobSignature:
    return JobSignature("fleet", script.name, "PyTorchJob", "image", script.name, 1, 0)


def _record(script: Script, number: int, asked: float, peak: float) -> RunRecord:
    return RunRecord(
        uid=str(number),
        signature=_signature(script),
        started_at=number * HOUR,
        updated_at=(number + 1) * HOUR,
        outcome="succeeded",
        requested={"replicas": 1.0, "memory": asked},
        peak={"memory": peak},
    )
