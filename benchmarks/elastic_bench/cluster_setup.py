# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The real cluster with a user's settings, and one job at a time on it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from testcluster import (
    cluster as clusters,
)
from testcluster import (
    deployment,
    host_python,
    settings,
    storage,
    training_operator,
)
from testcluster.cluster import Cluster
from testcluster.control_plane import GRACE_SECONDS, ControlPlane
from testcluster.deployment import ProjectImages
from testcluster.errors import CommandFailed
from testcluster.images import Images
from testcluster.jobs import RunningJob
from testcluster.objects import Object, apply

from benchmarks.elastic_bench import journal, manifest
from benchmarks.elastic_bench.journal import Track
from benchmarks.elastic_bench.waiting import wait

NAMESPACE = "bench-elastic"
HERE = pathlib.Path(__file__).parent
NAME_SECONDS = 30
"""For which names may be kept: what CoreDNS has as its default."""


def stated() -> dict[str, object]:
    """The settings, for the results."""
    return {
        "nodes": 3,
        "dns_ttl_seconds": NAME_SECONDS,
        "dns_cache_seconds": NAME_SECONDS,
        "node_grace_seconds": GRACE_SECONDS,
        "rover_annotations": manifest.ANNOTATIONS,
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The cluster as far as a measurement needs it."""

    cluster: Cluster

    @property
    def shared(self) -> pathlib.Path:
        """The folder of this machine behind the jobs' claim."""
        return self.cluster.root / "shared" / NAMESPACE

    def submit(self, job: Object) -> RunningJob:
        """Apply it."""
        ready = host_python.with_host_python(job, scripts=HERE)
        apply(self.cluster, [ready])
        return RunningJob(self.cluster, NAMESPACE, job["metadata"]["name"])

    def tracks(self, job: RunningJob) -> tuple[Track, ...]:
        """What its processes have written so far."""
        return journal.read(self.shared / job.name / "marks")

    def patch(self, job: RunningJob, spec: Object) -> None:
        """Merge into its spec, as kubectl patch does."""
        words = ("patch", "pytorchjob", job.name, "--type=merge", "-p", json.dumps({"spec": spec}))
        self.cluster.kubectl("-n", NAMESPACE, *words)

    def remove(self, job: RunningJob) -> None:
        """Delete it; returns when its pods are gone."""
        now = ("--timeout=60s",)
        self.cluster.kubectl("-n", NAMESPACE, "delete", "pytorchjob", job.name, *now)
        selector = f"training.kubeflow.org/job-name={job.name}"
        force = ("--grace-period=0", "--force", "--wait=false")
        self.cluster.kubectl("-n", NAMESPACE, "delete", "pods", "-l", selector, *force)
        what = f"the end of the pods of {job.name}"
        wait(lambda: not job.pods(), seconds=90, what=what, still=float("inf"))
        shutil.rmtree(self.shared / job.name, ignore_errors=True)


@contextlib.contextmanager
def prepared() -> Iterator[Place]:
    """A cluster with the controller; taken down again if it did not run before."""
    found = clusters.current()
    with clusters.using():
        cluster = clusters.up()
        control = ControlPlane(cluster.root, cluster.binaries, cluster.registry)
        control.serve_names(seconds=NAME_SECONDS)
        try:
            _deploy(cluster)
            _namespace(cluster)
            yield Place(cluster)
        finally:
            control.serve_names()
    if found is None:
        clusters.down_unless_used(cluster.root)


def _deploy(cluster: Cluster) -> None:
    """The controller from the working tree, and it and the operator where no node is broken."""
    images = Images(settings.cache()).project()
    cluster.load(images)
    base = settings.REPOSITORY / "manifests" / "overlays" / "standalone"
    with tempfile.TemporaryDirectory() as folder:
        told = deployment.overlay(pathlib.Path(folder), base, ProjectImages.built(images))
        objects = cluster.kubectl("kustomize", str(told))
    cluster.kubectl("apply", "-f", "-", text=objects)
    selector = {"kubernetes.io/hostname": safe_node(cluster)}
    patch = json.dumps({"spec": {"template": {"spec": {"nodeSelector": selector}}}})
    for namespace, name in (
        (deployment.NAMESPACE, deployment.DEPLOYMENT),
        (training_operator.NAMESPACE, training_operator.DEPLOYMENT),
    ):
        cluster.kubectl("-n", namespace, "patch", "deployment", name, "-p", patch)
        words = ("rollout", "status", f"deployment/{name}", "--timeout=180s")
        cluster.kubectl("-n", namespace, *words, timeout=200)
    deployment.wait(cluster)


def safe_node(cluster: Cluster) -> str:
    """Where controller and operator are, which is never lost."""
    return cluster.nodes[0].name


def _namespace(cluster: Cluster) -> None:
    try:
        cluster.kubectl("get", "namespace", NAMESPACE)
    except CommandFailed:
        # The operator's own init container is not admitted under the restricted profile.
        cluster.kubectl("create", "namespace", NAMESPACE)
    # What a run that was ended has left would be taken for this one's.
    cluster.kubectl("-n", NAMESPACE, "delete", "pytorchjobs,pods", "--all", "--timeout=90s")
    folder = cluster.root / "shared" / NAMESPACE
    shutil.rmtree(folder, ignore_errors=True)
    apply(cluster, host_python.host_volume(NAMESPACE))
    apply(cluster, storage.shared(NAMESPACE, manifest.CLAIM, folder))
