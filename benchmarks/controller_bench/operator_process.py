# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The real Training Operator as a process, with its webhook."""

from __future__ import annotations

import base64
import json
import pathlib

import yaml
from testcluster import training_operator
from testcluster.errors import CommandFailed

from benchmarks.controller_bench import creation
from benchmarks.controller_bench.control_plane import Plane

_CERTIFICATES = "k8s-webhook-server/serving-certs"
"""Below /tmp, where it looks for the Secret that a kubelet would mount."""
_PORT = 9443
# A /tmp of its own, which is gone with the process.
_IN_OWN_TMP = f'mount -t tmpfs none /tmp && mkdir -p /tmp/{_CERTIFICATES} && exec "$@"'


def start(plane: Plane) -> None:
    """Install its manifests and start it; returns when it admits jobs."""
    path = training_operator.render(plane.binaries["kubectl"], plane.root)
    documents = [item for item in yaml.safe_load_all(path.read_text()) if item]
    plane.apply([item for item in documents if item["kind"] == "Namespace"])
    plane.apply([item for item in documents if item["kind"] not in ("Namespace", "Deployment")])
    plane.route("kubeflow", "training-operator", "webhook-server", _PORT)
    operator = plane.registry.start(
        "operator",
        [
            *("env", f"KUBECONFIG={plane.kubeconfig}", "MY_POD_NAMESPACE=kubeflow"),
            *("unshare", "--mount", "sh", "-c", _IN_OWN_TMP, "sh"),
            plane.binaries["training-operator.v1"],
            "--enable-scheme=pytorchjob",
            # Its own defaults would take minutes for thousands of jobs.
            *("--controller-threads=8", "--kube-api-qps=1000", "--kube-api-burst=1000"),
            "--zap-log-level=error",
        ],
    )
    folder = pathlib.Path(f"/proc/{operator.pid}/root/tmp", _CERTIFICATES)
    plane.wait("the Training Operator's certificate", lambda: bool(_secret(plane)), 180)
    for name, value in _secret(plane).items():
        (folder / name).write_bytes(base64.b64decode(value))
    plane.wait("the Training Operator", lambda: _admits(plane), 180)


def _secret(plane: Plane) -> dict[str, str]:
    words = ("-n", "kubeflow", "get", "secret", "training-operator-webhook-cert", "-o", "json")
    found: dict[str, str] = json.loads(plane.kubectl(*words)).get("data") or {}
    return found


def _admits(plane: Plane) -> bool:
    probe = creation.job(0, 60.0)
    del probe["metadata"]["labels"], probe["metadata"]["namespace"]
    try:
        plane.kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(probe))
    except CommandFailed:
        return False
    return True
