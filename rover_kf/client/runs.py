# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that ran: what the history keeps of them, and their report."""

from __future__ import annotations

import pathlib

from rover_kf import errors
from rover_kf.api.jobs import JobKey
from rover_kf.api.records import RunRecord
from rover_kf.client import outcome
from rover_kf.client.abode import Abode, key_of
from rover_kf.recommender.recommend import recommend


class Runs(Abode):
    """What a client tells of a job's newest run."""

    def record(self, key: JobKey | str) -> RunRecord | None:
        """What the history keeps of the job's newest run."""
        return outcome.newest_run(self.history, key_of(key))

    def report(self, key: JobKey | str, path: pathlib.Path | str) -> outcome.ReportFile:
        """Write the run's report, one self-contained HTML file.

        Raises:
            JobNotFound: the history has no run of that job.
            InputError: the file cannot be written.
        """
        wanted, target = key_of(key), pathlib.Path(path)
        try:
            following = recommend(self.cluster.get_job(wanted).manifest, self.history)
        except errors.RoverError:  # deleted, or not ours: the run is still told
            following = None
        return outcome.write_report(self.history, wanted, target, following)

    def verdict(self, key: JobKey | str) -> str:
        """Why a job ended as it did, in the best words there are."""
        return outcome.verdict(self.cluster.get_job(key_of(key)), self.record(key))
