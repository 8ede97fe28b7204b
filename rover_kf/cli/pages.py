# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What ``rover-kf top --web`` answers at which path; no socket here."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
import urllib.parse
from collections.abc import Callable

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey, ObservedJob
from rover_kf.cli import standing
from rover_kf.client import RoverClient
from rover_kf.client.present import Present
from rover_kf.report import jobs, page
from rover_kf.report.jobs import JobRow
from rover_kf.report.page import Live

KINDS = (names.PYTORCHJOB, names.TFJOB)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""Of Kubernetes' objects."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """To one GET."""

    status: int
    text: str
    kind: str = "text/plain"


class Pages:
    """All pages of the live view.

    A look serves everybody who asks within half the time between two: more windows of a browser
    ask the cluster no more often.

    Args:
        rover: whose jobs are shown.
        namespace: only of it; None: of all.
        every: also jobs that have ended.
        seconds: between two looks.
    """

    def __init__(
        self, rover: RoverClient, *, namespace: str | None, every: bool, seconds: float
    ) -> None:
        self._rover = rover
        self._namespace, self._every, self._seconds = namespace, every, seconds
        self._present = Present(rover.cluster, rover.history)
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, str, Answer]] = {}

    def answer(self, path: str, nonce: str) -> Answer:
        """The page of a path, its script bearing the nonce."""
        with self._lock:
            now = time.monotonic()
            self._kept = {
                name: kept for name, kept in self._kept.items() if now - kept[0] < self._seconds / 2
            }
            if path not in self._kept:
                self._kept[path] = (now, nonce, self._made(path, nonce))
            _, held, found = self._kept[path]
            return dataclasses.replace(found, text=found.text.replace(held, nonce))

    def _made(self, path: str, nonce: str) -> Answer:
        live = Live(self._seconds, nonce)
        try:
            if path == "/":
                return Answer(200, self._jobs(live), "text/html")
            match [urllib.parse.unquote(part) for part in path.split("/")]:
                case ["", "jobs", namespace, kind, name] if _is_key(namespace, kind, name):
                    return Answer(200, self._job(JobKey(namespace, name, kind), live), "text/html")
        except errors.JobNotFound as error:
            return Answer(404, str(error))
        except errors.RoverError as error:
            return Answer(503, str(error))
        return Answer(404, "there are / and /jobs/NAMESPACE/KIND/NAME")

    def _jobs(self, live: Live) -> str:
        found = sorted(self._rover.list(self._namespace), key=lambda job: (job.finished, job.key))
        rows = [self._row(job) for job in found if self._every or not job.finished]
        where = f"namespace {self._namespace}" if self._namespace else "all namespaces"
        shown = "also those that have ended" if self._every else "those at work"
        return jobs.render(rows, columns=standing.COLUMNS[1:], place=f"{where}, {shown}", live=live)

    def _row(self, job: ObservedJob) -> JobRow:
        progress = self._rover.progress(job.key)
        parts = (job.key.namespace, job.key.kind, job.key.name)
        address = "/jobs/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)
        _, _, *cells = standing.cells(progress)  # its key is told as a whole
        return JobRow(str(job.key), address, tuple(cells), bad=standing.failed(progress))

    def _job(self, key: JobKey, live: Live) -> str:
        return page.render(self._present.record(key, time.time()), live=live)


def _is_key(namespace: str, kind: str, name: str) -> bool:
    return kind in KINDS and all(_NAME.fullmatch(one) for one in (namespace, name))


Ask = Callable[[str, str], Answer]
"""Path and nonce to an answer."""
