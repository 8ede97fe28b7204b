# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An object of a tenant ends nothing that looks after all jobs."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.cluster.kubernetes.api import KubernetesApi
from rover_kf.cluster.kubernetes.cached_cluster import PodIndex

KEY = JobKey("team-b", "llm")
LABELS = {
    names.OPERATOR_NAME_LABEL: "pytorchjob-controller",
    names.JOB_NAME_LABEL: "llm",
    names.REPLICA_TYPE_LABEL: "worker",
    names.REPLICA_INDEX_LABEL: "0",
}


def pod(name: str, namespace: str = "team-b", **changes: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": name,
        "resourceVersion": "5",
        "labels": LABELS,
    }
    return {"metadata": metadata, "spec": {"containers": []}, "status": {}} | changes


class Pods(KubernetesApi):
    """An API server with these pods; its watch has one change, then waits until the test ends."""

    def __init__(self, listed: list[Any], changed: Any = None) -> None:
        self._listed, self._changed = listed, changed
        self.watched, self.end = threading.Event(), threading.Event()

    def pages(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        yield {"items": self._listed, "metadata": {"resourceVersion": "9"}}

    def watch(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        if self._changed is not None:
            yield {"type": "MODIFIED", "object": self._changed}
        self.watched.set()
        self.end.wait()


def names_after(listed: list[Any], changed: Any = None) -> list[str]:
    """Follow these pods in a thread as the controller does; the job's pods that it then knows."""
    api, stop = Pods(listed, changed), threading.Event()
    index = PodIndex(api)
    thread = threading.Thread(target=index.follow, args=(stop,))
    thread.start()
    try:
        assert api.watched.wait(60), "the thread has read the list and the change"
        assert thread.is_alive()
        assert index.synced.is_set()
        return [one.name for one in index.pods_of(KEY)]
    finally:
        stop.set()
        api.end.set()
        thread.join()


BROKEN = {
    "an index that is no number": {
        "metadata": {"labels": {**LABELS, names.REPLICA_INDEX_LABEL: "x"}}
    },
    "an index of a million digits": {
        "metadata": {"labels": {**LABELS, names.REPLICA_INDEX_LABEL: "9" * 10**6}}
    },
    "labels that are a text": {"metadata": {"labels": "no"}},
    "a status that is a list": {"status": ["no"]},
    "containers without names": {"status": {"containerStatuses": [{}]}},
    "a time that is none": {
        "status": {
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": 1}]
        }
    },
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_pod_that_cannot_be_read_is_left_out(what, caplog):
    """The thread that follows pods ended in bcea6b1, and so did each controller after it."""
    stated = BROKEN[what]
    metadata = pod("anything", "team-a")["metadata"] | stated.get("metadata", {})
    broken = {**pod("anything", "team-a"), **stated, "metadata": metadata}
    listed = [pod("llm-worker-0"), broken, pod("llm-worker-1")]
    assert names_after(listed, changed=broken) == ["llm-worker-0", "llm-worker-1"]
    logged = [text for text in caplog.messages if "team-a/anything cannot be read" in text]
    assert len(logged) == 1, "said once, for the list and the watch together"


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A value at a place of a pod."""

    path: tuple[str, ...]
    value: Any


PLACES = [
    ("metadata", "labels"),
    ("metadata", "labels", names.REPLICA_INDEX_LABEL),
    ("metadata", "labels", names.REPLICA_TYPE_LABEL),
    ("metadata", "labels", names.JOB_NAME_LABEL),
    ("metadata", "deletionTimestamp"),
    ("spec",),
    ("spec", "nodeName"),
    ("spec", "containers"),
    ("spec", "initContainers"),
    ("status",),
    ("status", "phase"),
    ("status", "podIP"),
    ("status", "conditions"),
    ("status", "containerStatuses"),
    ("status", "initContainerStatuses"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.lists(st.builds(Mutation, st.sampled_from(PLACES), JSON), min_size=1, max_size=4))
def test_any_pod_of_a_tenant_leaves_the_others_followed(mutations):
    """Each field of a Pod that the controller reads, with any value."""
    hostile = pod("anything", "team-a")
    for mutation in mutations:
        inner: Any = hostile
        for part in mutation.path[:-1]:
            inner[part] = dict(inner[part]) if isinstance(inner.get(part), dict) else {}
            inner = inner[part]
        inner[mutation.path[-1]] = mutation.value
    assert names_after([hostile, pod("llm-worker-0")], changed=hostile) == ["llm-worker-0"]
