# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The record of a run as it is at this moment: what the history keeps, and a look on top of it."""

from __future__ import annotations

import logging

from rover_kf import errors
from rover_kf.api.jobs import JobKey
from rover_kf.api.records import RunRecord
from rover_kf.api.status import CoordinatorStatus
from rover_kf.client import results
from rover_kf.cluster import coordinator_status
from rover_kf.cluster.protocol import Cluster
from rover_kf.history import recorder
from rover_kf.history.history_protocol import HistoryStore
from rover_kf.injection.limits import manifest_memory
from rover_kf.reconcilers.run_recording import new_run_record

LOG = logging.getLogger(__name__)


class CurrentRecords:
    """Looks at jobs; keeps what it has seen of those whose run the history does not have.

    Args:
        cluster: where jobs are.
        history: where their runs are recorded; it may be away.
    """

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
            return results.latest_run(self._history, key)
        except errors.HistoryUnavailable as error:
            LOG.warning("%s: shown without its history: %s", key, error)
            return None

    def _status(self, key: JobKey) -> CoordinatorStatus | None:
        try:
            return coordinator_status.fetch(self._cluster, key)
        except errors.ClusterUnavailable:
            return None
