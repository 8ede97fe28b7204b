# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What reconcilers, recommender, report and client need of a history."""

from __future__ import annotations

from typing import Protocol

from rover_kf.api.records import JobSignature, RunRecord


class HistoryStore(Protocol):
    """Runs by uid. Every method raises HistoryUnavailable if the database cannot be used now."""

    def upsert(self, record: RunRecord) -> None:
        """Write the record, replacing the one of the same uid."""

    def get(self, uid: str) -> RunRecord | None:
        """The record of that uid; None if there is none."""

    def similar(self, signature: JobSignature, limit: int = 50) -> tuple[RunRecord, ...]:
        """Runs of the same namespace and kind, most alike first, then newest."""

    def list(
        self,
        *,
        namespace: str | None = None,
        name: str | None = None,
        outcome: str | None = None,
        visible_from: str | None = None,
        limit: int = 100,
    ) -> tuple[RunRecord, ...]:
        """Newest runs first, filtered by what is given.

        Args:
            namespace: of the runs.
            name: of the job.
            outcome: of the runs.
            visible_from: only runs of this namespace, and of those that share theirs.
            limit: runs at most.
        """

    def delete(self, uid: str) -> bool:
        """Forget a run; False if there was none."""

    def retain(self, *, newer_than: float) -> int:
        """Forget runs that ended and were last written before that time; returns how many."""
