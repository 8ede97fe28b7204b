# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what a decision about a job with parameter servers needs beside the job itself.

What its like have shown, the room around it, and whether the API server would take the change.
"""

from __future__ import annotations

import dataclasses

from rover_kf.cluster.protocol import Cluster
from rover_kf.injection.adapters import TENSORFLOW
from rover_kf.reconcilers import capacity, ps_proposal, ps_resize, ps_scaling
from rover_kf.reconcilers.cluster_view import Board
from rover_kf.reconcilers.plan import Observed, Resize, Resume
from rover_kf.reconcilers.run_recording import RunHistory
from rover_kf.reconcilers.status_annotation import JobStatus


class ServerView:
    """Of one process' jobs.

    Args:
        cluster: where they run.
        board: what is known of the room that they share.
        history: of their runs.
    """

    def __init__(self, cluster: Cluster, board: Board, history: RunHistory) -> None:
        self._cluster, self._board, self._history = cluster, board, history

    def of(self, seen: Observed, memory: JobStatus, now: float) -> Observed:
        """What is seen, with where the job would go and what is in the way.

        Args:
            seen: the job.
            memory: its annotation.
            now: Unix seconds.

        Raises:
            ClusterUnavailable: the cluster did not answer.
        """
        pending = ps_resize.pending(memory)
        if seen.job.suspended and memory.cycle and pending is not None and not seen.pods:
            goes_on = Resume(memory, ps_resize.replicas(seen.job, pending))
            return dataclasses.replace(seen, refused=self._refused(seen, goes_on))
        if not ps_proposal.asks(seen, memory):
            return seen
        seen = dataclasses.replace(seen, law=self._history.law(seen.job, now))
        seen = dataclasses.replace(seen, sizes=ps_proposal.of(seen, memory, now))
        decision = ps_scaling.wanted(seen)
        if decision is None:
            return seen
        refused = ""
        if not ps_scaling.through_cycle(seen):
            # What is set while all pods are gone is tried then.
            change = Resize(decision.target, memory, TENSORFLOW.specs)
            refused = self._refused(seen, change)
        need = capacity.need(seen.job, ps_scaling.more(decision) or "worker")
        view = self._board.room(seen.job.key, need, now)
        return dataclasses.replace(seen, view=view, refused=refused)

    def _refused(self, seen: Observed, change: Resize | Resume) -> str:
        return self._cluster.try_patch(seen.job.key, {"spec": change.spec})
