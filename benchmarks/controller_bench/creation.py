# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs created at a steady pace, and how long the API server waited for the webhook."""

from __future__ import annotations

import concurrent.futures
import json
import math
import pathlib
import ssl
import time
from typing import Any

import urllib3

from benchmarks.controller_bench import network_namespace
from benchmarks.controller_bench.histogram import Histogram

NAMESPACE = "bench"
_HOOK = "inject.rover-kf.io"
_JOBS = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
_WAITS = "apiserver_admission_webhook_admission_duration_seconds"
_WORKERS = 32
_CREATED, _OVERLOADED = 201, 429
_TRIES = 5


class Creator:
    """Creates jobs as an administrator.

    Args:
        root: of the control plane, with its certificates.
        window: seconds of the jobs' windows.
    """

    def __init__(self, root: pathlib.Path, window: float) -> None:
        self._window = window
        context = ssl.create_default_context(cafile=str(root / "pki/ca.crt"))
        context.load_cert_chain(root / "pki/admin.crt", root / "pki/admin.key")
        self._pool = urllib3.HTTPSConnectionPool(
            network_namespace.HOST,
            6443,
            maxsize=_WORKERS,
            ssl_context=context,
            timeout=60,
            retries=3,
        )

    def create(self, first: int, count: int, *, rate: float, dry: bool = False) -> list[float]:
        """Create jobs, so many a second; returns seconds that each took, infinite if refused.

        Args:
            first: number in the first one's name.
            count: jobs.
            rate: a second.
            dry: go through admission alone and leave none.
        """
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(_WORKERS) as threads:
            started = []
            for index in range(count):
                time.sleep(max(0.0, began + index / rate - time.monotonic()))
                started.append(threads.submit(self._create, first + index, dry=dry))
            return [future.result() for future in started]

    def waits(self) -> Histogram:
        """How long the API server waited for the webhook, as it says itself."""
        text = self._pool.request("GET", "/metrics").data.decode()
        return Histogram.read(text, _WAITS, name=_HOOK, operation="CREATE")

    def _create(self, number: int, *, dry: bool) -> float:
        path = f"{_JOBS}?dryRun=All" if dry else _JOBS
        began = time.monotonic()
        text = json.dumps(job(number, self._window))
        headers = {"Content-Type": "application/json"}
        # An overloaded machine lets the Training Operator's own webhook miss its ten seconds.
        for _ in range(1 if dry else _TRIES):
            reply = self._pool.request("POST", path, body=text, headers=headers)
            if reply.status == _CREATED:
                return time.monotonic() - began
            said = f"{reply.status} {reply.data[:500]!r}"
            if reply.status < _OVERLOADED:
                break
        if dry:
            print(f"a creation was refused: {said}", flush=True)
            return math.inf
        raise RuntimeError(f"a job was not created: {said}")


def job(number: int, window: float) -> dict[str, Any]:
    """A job of two workers under ``scaling.mode: auto``, as its user would write it."""
    container = {
        "name": "pytorch",
        "image": "registry.example/team/train:1",
        "command": ["torchrun", "--nproc-per-node=1", "/app/train.py", f"--run={number}"],
        "env": [{"name": f"SETTING_{index}", "value": str(index)} for index in range(5)],
        "resources": {
            "requests": {"cpu": "1", "memory": "2Gi"},
            "limits": {"memory": "4Gi"},
        },
    }
    worker = {
        "replicas": 2,
        "restartPolicy": "OnFailure",
        "template": {"spec": {"containers": [container]}},
    }
    annotations = {
        "rover-kf.io/scaling.mode": "auto",
        "rover-kf.io/scaling.min": "1",
        "rover-kf.io/scaling.max": "4",
        "rover-kf.io/scaling.window": f"{window:g}s",
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": f"job-{number:05}",
            "namespace": NAMESPACE,
            "labels": {"rover-kf.io/inject": "true"},
            "annotations": annotations,
        },
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }
