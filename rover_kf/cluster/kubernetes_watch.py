# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Changes of jobs as the API server streams them; what was missed is made up for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rover_kf.api.jobs import JobKey, ObservedJob
from rover_kf.cluster import kubernetes_objects as objects
from rover_kf.cluster.kubernetes_api import Api, Expired, Query

_PAUSE_SECONDS = 0.5


class JobWatch:
    """One watch of one collection.

    Args:
        api: of the cluster.
        path: of the collection.
        query: which of its objects.
        listed: all of them, for when changes were missed.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        query: Query,
        listed: Callable[[], tuple[ObservedJob, ...]],
    ) -> None:
        self._api, self._path, self._query, self._list = api, path, query, listed

    def changes(self, timeout_seconds: float) -> Iterator[JobKey]:
        """Keys of jobs that change from this call on; ends after the timeout."""
        return self._changes(self._version(), time.monotonic() + timeout_seconds)

    def _version(self) -> str:
        query: Query = {**self._query, "limit": 1}
        reply = self._api.request("GET", self._path, what="jobs", query=query)
        return str(reply["metadata"]["resourceVersion"])

    def _changes(self, version: str, deadline: float) -> Iterator[JobKey]:
        while (left := deadline - time.monotonic()) > 0:
            query: Query = {**self._query, "resourceVersion": version, "allowWatchBookmarks": True}
            opened = time.monotonic()
            try:
                path = self._path
                for change in self._api.watch(path, what="jobs", query=query, seconds=left):
                    version = change["object"]["metadata"]["resourceVersion"]
                    if change["type"] != "BOOKMARK":
                        yield objects.key_of(change["object"])
            except Expired:
                # What changed meanwhile is not known: every job may have.
                version = self._version()
                yield from (job.key for job in self._list())
            if time.monotonic() - opened < _PAUSE_SECONDS:
                time.sleep(_PAUSE_SECONDS)  # a server that ends streams at once is in trouble
