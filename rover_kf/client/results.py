# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A run's record now and when it is over, its report, and why it ended so."""

from __future__ import annotations

import html
import logging
import pathlib

from rover_kf import errors
from rover_kf.api.jobs import JobKey, ObservedJob
from rover_kf.api.records import RunRecord
from rover_kf.api.status import CoordinatorStatus
from rover_kf.client import manifests
from rover_kf.cluster.protocol import Cluster, fetch_status
from rover_kf.history import recorder
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.injection.limits import manifest_memory
from rover_kf.recommender.recommend import recommend
from rover_kf.reconcilers.run_recording import new_run_record
from rover_kf.report.page import render

SHOWN_BYTES = 2 << 20
"""A larger report is named in a notebook, not shown: it would be kept in the notebook's file."""


class ReportFile(pathlib.PosixPath):
    """The path of a report; a notebook shows the report itself."""

    def _repr_html_(self) -> str:
        if not self.is_file() or self.stat().st_size > SHOWN_BYTES:
            return f"<p>{html.escape(str(self))}</p>"
        page = html.escape(self.read_text(encoding="utf-8"))
        # In a frame of its own: neither its styles nor its scripts touch the notebook's page.
        look = "width:100%;height:640px;border:1px solid #ccc"
        return f'<iframe sandbox="allow-scripts" style="{look}" srcdoc="{page}"></iframe>'


def latest_run(history: HistoryStore, key: JobKey) -> RunRecord | None:
    """The history's newest record of a job."""
    found = history.list(namespace=key.namespace, name=key.name, limit=1)
    return found[0] if found else None


def run_of(history: HistoryStore, job: ObservedJob) -> RunRecord | None:
    """The record of this very job; None also if the history cannot be read."""
    try:
        record = latest_run(history, job.key)
    except errors.HistoryUnavailable:
        return None
    return record if record is not None and record.uid == job.uid else None


def write_report(
    cluster: Cluster, history: HistoryStore, key: JobKey, path: pathlib.Path
) -> ReportFile:
    """Write the newest run's report, with sizes for the next one if they can be recommended."""
    try:
        following = recommend(cluster.get_job(key).manifest, history)
    except errors.RoverError:  # deleted, or not ours: the run is still reported
        following = None
    record = latest_run(history, key)
    if record is None:
        raise errors.NoSuchJob(f"the history has no run of {key}; rover-kf history list")
    manifests.write_text(path, render(record, recommendation=following))
    return ReportFile(path)


def final_reason(cluster: Cluster, history: HistoryStore, key: JobKey) -> str:
    """Why a job ended as it did: the coordinator's words, else the operator's."""
    job, record = cluster.get_job(key), latest_run(history, key)
    if record is not None and record.uid == job.uid and record.verdict:
        return record.verdict
    conditions = (job.manifest.get("status") or {}).get("conditions") or [{}]
    return str(conditions[-1].get("message", ""))


LOG = logging.getLogger(__name__)


class CurrentRecords:
    """The records of jobs as they are now, also while the history is away."""

    def __init__(self, cluster: Cluster, history: HistoryStore) -> None:
        self._cluster = cluster
        self._history = history
        self._seen: dict[JobKey, RunRecord] = {}

    def record(self, key: JobKey, now: float) -> RunRecord:
        """The job's run, stamped with ``now`` (Unix seconds).

        Raises:
            NoSuchJob: neither the cluster nor the history has it.
        """
        known = self._recorded(key)
        try:
            job = self._cluster.get_job(key)
        except errors.NoSuchJob:
            if known is None:
                raise
            return known
        if known is None or known.uid != job.uid:
            known = self._seen.get(key)
        if known is None or known.uid != job.uid:
            known = new_run_record(job)
        status = self._status(key)
        limit = manifest_memory.max_limit(job.manifest)
        whole = recorder.update(known, job, status, memory_limit=limit)
        self._seen[key] = whole
        return whole if job.finished else recorder.stamp(whole, now)

    def _recorded(self, key: JobKey) -> RunRecord | None:
        try:
            return latest_run(self._history, key)
        except errors.HistoryUnavailable as error:
            LOG.warning("%s: shown without its history: %s", key, error)
            return None

    def _status(self, key: JobKey) -> CoordinatorStatus | None:
        try:
            return fetch_status(self._cluster, key)
        except errors.ClusterUnavailable:
            return None
