# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A collection of the API server, followed by list and watch and kept small in memory.

What is kept of an object is what ``keep`` makes of it: parsed, a job takes twenty times the memory
of its compressed text. Lists are read page by page for the same reason.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from rover_kf import errors
from rover_kf.cluster.kubernetes.api import KubernetesApi, Query, ResourceVersionExpired

LOG = logging.getLogger(__name__)

PAGE = 100
"""Objects that are parsed at a time."""
WATCH_SECONDS = 60.0
"""After that the watch is opened anew: a connection that has died unseen is not waited on."""
ABSENT_SECONDS = 60.0
"""Between two looks for a collection that the API server does not have: a kind of job may be
installed later."""
_MAX_UNREADABLE = 1000
"""Objects of which it is remembered that they cannot be read."""
PAUSE_SECONDS, LONGEST_PAUSE = 1.0, 10.0
"""Between two tries to follow an API server that does not answer: at first, and at most."""

T = TypeVar("T")
ObjectKey = tuple[str, str]
"""Namespace and name."""


class Informer(Generic[T]):
    """The content of a collection, as far as it was read; ``what`` names it in errors.

    ``transform`` returns what is kept of an object. ``on_change`` is called after a change that
    nobody here has written, also for an object that is gone.
    """

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        *,
        what: str,
        query: Query,
        transform: Callable[[Mapping[str, Any]], T],
        on_change: Callable[[ObjectKey], None],
    ) -> None:
        self._api, self._path, self._what, self._query = api, path, what, query
        self._transform, self._on_change = transform, on_change
        self._lock = threading.Lock()
        self._objects: dict[ObjectKey, tuple[int, T]] = {}
        self._unreadable = set[ObjectKey]()
        """Of whom that was logged."""
        self.synced = threading.Event()
        """Set once the whole collection was read; from then on what is not here is not there."""

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: ObjectKey) -> T | None:
        """What is kept of that object; None if it is not here."""
        found = self._objects.get(key)
        return None if found is None else found[1]

    def keys(self) -> tuple[ObjectKey, ...]:
        """Where there are objects."""
        with self._lock:
            return tuple(self._objects)

    def record_write(self, item: Mapping[str, Any]) -> None:
        """Take what the API server answered to a write of ours; its echo tells nobody anything."""
        place, version = _object_key(item), _version(item)
        with self._lock:
            known = self._objects.get(place)
            # One that is gone must not come back by an answer that was under way.
            if known is not None and known[0] < version:
                self._objects[place] = (version, self._transform(item))

    def follow(self, stop: threading.Event) -> None:
        """List, then watch, and again whenever that breaks off; until stop is set."""
        pause = PAUSE_SECONDS
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._list_and_watch(stop)
            except ResourceVersionExpired:
                LOG.info("%s are listed again: the watch was too far behind", self._what)
            except errors.NoSuchJob:
                LOG.info("the API server has no %s; looking again later", self._what)
                stop.wait(ABSENT_SECONDS)
            except Exception as cause:  # whatever a server answers, all jobs are still followed
                if time.monotonic() - began > LONGEST_PAUSE:
                    pause = PAUSE_SECONDS  # it has worked for a while
                expected = isinstance(cause, errors.RoverError)
                LOG.warning(
                    "%s: %s; trying again in %g s", self._what, cause, pause, exc_info=not expected
                )
                stop.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _list_and_watch(self, stop: threading.Event) -> None:
        version = self._read_all()
        while not stop.is_set():
            opened = time.monotonic()
            version = self._watch(version)
            if time.monotonic() - opened < PAUSE_SECONDS:
                stop.wait(PAUSE_SECONDS)  # a server that ends streams at once is in trouble

    def _read_all(self) -> str:
        """Take the whole collection; returns the version to watch from."""
        seen = set[ObjectKey]()
        version = ""
        for reply in self._api.pages(self._path, what=self._what, query=self._query, limit=PAGE):
            version = reply["metadata"]["resourceVersion"]
            for item in reply.get("items") or ():
                seen.add(_object_key(item))
                self._store(item)
        for place in set(self.keys()) - seen:
            self._drop(place, None)
        self.synced.set()
        return str(version)

    def _watch(self, version: str) -> str:
        query: Query = {**self._query, "resourceVersion": version, "allowWatchBookmarks": True}
        for change in self._api.watch(
            self._path, what=self._what, query=query, seconds=WATCH_SECONDS
        ):
            item = change["object"]
            version = str(item["metadata"]["resourceVersion"])
            if change["type"] == "DELETED":
                self._drop(_object_key(item), _version(item))
            elif change["type"] != "BOOKMARK":
                self._store(item)
        return version

    def _store(self, item: Mapping[str, Any]) -> None:
        place, version = _object_key(item), _version(item)
        known = self._objects.get(place)
        if known is not None and known[0] >= version:
            return
        try:
            kept = self._transform(item)
        except Exception as cause:  # noqa: BLE001 - a tenant wrote it; the others are still followed
            self._leave_out(place, cause)
            return
        self._unreadable.discard(place)
        with self._lock:
            known = self._objects.get(place)
            if known is not None and known[0] >= version:
                return
            self._objects[place] = (version, kept)
        self._on_change(place)

    def _leave_out(self, key: ObjectKey, cause: Exception) -> None:
        """Keep nothing of an object that cannot be read, and log that once."""
        if key not in self._unreadable and len(self._unreadable) < _MAX_UNREADABLE:
            self._unreadable.add(key)
            LOG.warning("%s: %s/%s cannot be read and is left out: %r", self._what, *key, cause)
        self._drop(key, None)

    def _drop(self, key: ObjectKey, version: int | None) -> None:
        with self._lock:
            known = self._objects.get(key)
            if known is None or (version is not None and known[0] > version):
                return
            del self._objects[key]
        self._on_change(key)


def _object_key(item: Mapping[str, Any]) -> ObjectKey:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(item: Mapping[str, Any]) -> int:
    """Kubernetes' versions are the store's own count: of two of one object the larger is later."""
    return int(item["metadata"]["resourceVersion"])
