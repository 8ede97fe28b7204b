# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One measured repeat: a fresh job, trained until it has settled, disturbed, and watched."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shutil
import time
import uuid

from testcluster import logs
from testcluster.jobs import RunningJob

from benchmarks.elastic_bench import manifest, outcome
from benchmarks.elastic_bench.actions import ACTIONS, Gone, Scene, whole
from benchmarks.elastic_bench.cluster_setup import NAMESPACE, Place
from benchmarks.elastic_bench.outcome import Outcome, World
from benchmarks.elastic_bench.waiting import TooLong, wait

SETTLED_STEPS = 110
"""Steps of every rank before the action: two files of the stock side are written then."""
LONGEST_SECONDS = 600.0
"""A stock world was seen to take five minutes until it was whole."""
GOODPUT_SECONDS = 300.0
FAULT_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Course:
    """Repeats of one side.

    Args:
        place: the cluster.
        side: of manifest.SIDES.
        logs: folder for logs, Events and marks of repeats that failed.
        every: keep those of all repeats.
        goodput_seconds: that goodput is measured for.
    """

    place: Place
    side: str
    logs: pathlib.Path
    every: bool = False
    goodput_seconds: float = GOODPUT_SECONDS

    def take(self, action: str) -> Outcome:
        """One repeat.

        Raises:
            TooLong: a step of it did not happen in time; its logs are kept then.
        """
        # A name of its own: name servers give the former job's addresses for half a minute.
        name = f"{self.side}-{action.replace('_', '-')}-{uuid.uuid4().hex[:4]}"
        with whole(self.place):
            wanted = ACTIONS.get(action, ACTIONS["kill_process"])
            job = manifest.job(
                name, NAMESPACE, side=self.side, workers=wanted.workers, master=wanted.master
            )
            begun = time.time()
            running = self.place.submit(job)
            try:
                if action == "submit":
                    found = self._started(running, wanted.workers, begun)
                else:
                    found = self._disturbed(running, action)
            except TooLong:
                self._keep(running)
                raise
            else:
                if self.every:
                    self._keep(running)
                return found
            finally:
                self.place.remove(running)

    def goodput(self) -> float:
        """Part of some minutes with a killed process each that went into new steps."""
        name = f"{self.side}-goodput"
        job = manifest.job(name, NAMESPACE, side=self.side, workers=3)
        running = self.place.submit(job)
        try:
            world = self._settled(running, 3)
            usual = min(outcome.step_seconds(track) for track in world.tracks)
            begun = time.time()
            while (left := begun + self.goodput_seconds - time.time()) > 0:
                time.sleep(min(left, FAULT_SECONDS))
                newest = outcome.trains(self.place.tracks(running), 3, 1)
                if left > FAULT_SECONDS and newest:
                    scene = Scene(self.place, running, newest, self.side)
                    # Who has not recovered from the fault before is spared this one.
                    with contextlib.suppress(Gone):
                        ACTIONS["kill_process"].act(scene)
            tracks = self.place.tracks(running)
            ended = begun + self.goodput_seconds
            return outcome.goodput(tracks, begun=begun, ended=ended, step_seconds=usual)
        finally:
            self.place.remove(running)

    def _started(self, job: RunningJob, size: int, begun: float) -> Outcome:
        look = lambda: outcome.outcome(  # noqa: E731 - one expression
            self.place.tracks(job), before=(), acted=begun, size=size, left=set()
        )
        return wait(look, seconds=LONGEST_SECONDS, what=f"{job.name}: every rank's first step")

    def _disturbed(self, job: RunningJob, action: str) -> Outcome:
        wanted = ACTIONS[action]
        size = wanted.workers + wanted.master
        world = self._settled(job, size)
        before = {found.name for found in outcome.worlds(self.place.tracks(job))}
        acted = time.time()
        touched = wanted.act(Scene(self.place, job, world, self.side))
        look = lambda: outcome.outcome(  # noqa: E731 - one expression
            self.place.tracks(job),
            before=before,
            acted=acted,
            size=wanted.target,
            left=world.pods - touched,
        )
        what = f"{job.name}: a world of {wanted.target} after {action}"
        return wait(look, seconds=LONGEST_SECONDS, what=what)

    def _settled(self, job: RunningJob, size: int) -> World:
        def look() -> World | None:
            return outcome.trains(self.place.tracks(job), size, SETTLED_STEPS)

        what = f"{job.name}: {SETTLED_STEPS} steps of a world of {size}"
        # Nothing is measured yet: whoever looks may stand still here.
        return wait(look, seconds=LONGEST_SECONDS, what=what, still=float("inf"))

    def _keep(self, job: RunningJob) -> None:
        folder = self.logs / job.name
        daemons = self.place.cluster.root / "log"
        logs.collect(self.place.cluster.kubectl, [NAMESPACE], folder, daemons)
        marks = self.place.shared / job.name / "marks"
        if marks.is_dir():
            shutil.copytree(marks, folder / "marks", dirs_exist_ok=True)
