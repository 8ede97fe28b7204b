# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that need a real cluster.

    pytest tests/cluster                     starts a cluster (or uses the one of `make cluster-up`)
    pytest tests/cluster --keep-cluster      leaves it running afterwards
    pytest tests/cluster --kubeconfig FILE   uses that cluster; tests that break nodes are skipped

Without root, Go or the Debian packages these tests are skipped with the reason; with CI=true they
fail.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import uuid
from collections.abc import Iterator

import pytest
from testcluster import cluster as clusters
from testcluster import deployment, logs, packages, settings, trainer
from testcluster.cluster import Cluster
from testcluster.faults import Faults
from testcluster.foreign import ForeignCluster
from testcluster.images import Images
from testcluster.layout import Image
from testcluster.objects import apply

CONTROLLER_NAMESPACE = "rover-kf-system"
_USED = pytest.StashKey[list[str]]()


def pytest_addoption(parser):
    group = parser.getgroup("cluster")
    group.addoption(
        "--kubeconfig", type=pathlib.Path, help="use this cluster instead of starting one"
    )
    group.addoption("--keep-cluster", action="store_true", help="leave the started cluster running")
    group.addoption("--trainer-image", help="with --kubeconfig: image with Python and torch")


def pytest_collection_modifyitems(config, items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            # The first test's fixtures compile Kubernetes: what they do has limits of its own.
            given = item.get_closest_marker("timeout")
            seconds = given.args[0] if given else float(config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(seconds, func_only=True), append=False)


def pytest_terminal_summary(terminalreporter):
    counts = {
        outcome: sum(
            "cluster" in report.keywords for report in terminalreporter.getreports(outcome)
        )
        for outcome in ("passed", "failed", "skipped")
    }
    if any(counts.values()):
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        terminalreporter.write_line(f"real-cluster tests: {told}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    cluster = item.funcargs.get("cluster") if hasattr(item, "funcargs") else None
    if report.failed and cluster is not None and call.when in ("setup", "call"):
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", item.nodeid.removeprefix("tests/cluster/"))
        folder = settings.REPOSITORY / "build" / "cluster-logs" / name
        daemons = cluster.root / "log" if isinstance(cluster, Cluster) else None
        used = [*item.stash.get(_USED, []), CONTROLLER_NAMESPACE]
        logs.collect(cluster.kubectl, used, folder, daemons)
        report.sections.append(("cluster logs", f"collected in {folder}"))
    return report


def _unmet() -> str:
    if os.geteuid() != 0:
        return "not root: network namespaces, mounts and control groups cannot be made"
    lacking = packages.missing()
    if lacking:
        return f"missing programs: {lacking}; run python3 tests/cluster/testcluster/packages.py"
    return "" if shutil.which("go") else "Go is not on PATH: Kubernetes cannot be compiled"


@pytest.fixture(scope="session")
def cluster(request) -> Iterator[Cluster | ForeignCluster]:
    """The cluster that this session's tests share."""
    given = request.config.getoption("--kubeconfig", default=None)
    if given:
        yield ForeignCluster(given.resolve())
        return
    reason = _unmet()
    if reason:
        if settings.in_ci():
            pytest.fail(f"real-cluster tests must run in CI: {reason}")
        pytest.skip(reason)
    found = clusters.current()
    with clusters.using():
        running = clusters.up()
        yield running
    if found is None and not request.config.getoption("--keep-cluster", default=False):
        clusters.down_unless_used(running.root)


@pytest.fixture
def faults(cluster) -> Faults:
    """Ways to break the cluster; only one of our own making may be broken."""
    if isinstance(cluster, ForeignCluster):
        pytest.skip(
            "the cluster of --kubeconfig is not ours: its nodes cannot be stopped or cut off"
        )
    return Faults(cluster)


@pytest.fixture(scope="session")
def project_images(cluster) -> list[Image]:
    """Controller and sidecar, built from the working tree and known to every node."""
    if isinstance(cluster, ForeignCluster):
        return []  # they come from where the manifests say
    images = Images(settings.cache()).project()
    cluster.load(images)
    return images


@pytest.fixture(scope="session")
def controller(cluster, project_images, tmp_path_factory) -> str:
    """The controller as `kubectl apply -k manifests/overlays/standalone` deploys it; its namespace.

    On a cluster of our own the overlay's images are those just built; on a foreign one they are as
    the manifests name them.
    """
    overlay = settings.REPOSITORY / "manifests" / "overlays" / "standalone"
    if isinstance(cluster, Cluster):
        folder = tmp_path_factory.mktemp("overlay")
        overlay = deployment.overlay(folder, overlay, project_images)
    cluster.kubectl("apply", "-k", str(overlay))
    deployment.wait(cluster, CONTROLLER_NAMESPACE)
    return CONTROLLER_NAMESPACE


@pytest.fixture
def controller_down(cluster, controller):
    """Take the controller away when called; it is back after the test."""
    taken: list[str] = []

    def take() -> None:
        taken.append(controller)
        deployment.scale(cluster, controller, 0)

    yield take
    if taken:
        deployment.scale(cluster, controller, 1)


@pytest.fixture
def make_namespace(cluster, request):
    """Make namespaces under a pod-security profile; each is deleted afterwards, and waited for."""
    made: list[str] = []
    request.node.stash[_USED] = made

    def make(profile: str = "restricted") -> str:
        name = f"test-{uuid.uuid4().hex[:8]}"
        labels = {f"pod-security.kubernetes.io/{mode}": profile for mode in ("enforce", "warn")}
        metadata = {"name": name, "labels": labels}
        document = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        cluster.kubectl("create", "-f", "-", text=json.dumps(document))
        made.append(name)
        return name

    yield make
    for name in made:
        cluster.kubectl("delete", "namespace", name, "--wait=true", "--timeout=180s", timeout=200)
        cluster.kubectl("delete", "persistentvolume", "-l", f"{trainer.NAMESPACE_LABEL}={name}")
        if isinstance(cluster, Cluster):
            shutil.rmtree(_shared_folder(cluster, name), ignore_errors=True)


@pytest.fixture
def namespace(make_namespace) -> str:
    """A namespace of this test's own, under the restricted profile."""
    return make_namespace()


@pytest.fixture
def host_python(cluster, namespace):
    """Give the namespace this machine's files; returns testcluster.trainer.with_host_python."""
    if isinstance(cluster, ForeignCluster):
        pytest.skip(
            "a foreign cluster's nodes do not have this machine's Python; not supported yet"
        )
    apply(cluster, trainer.host_volume(namespace))
    return trainer.with_host_python


@pytest.fixture
def shared_claim(cluster, namespace):
    """Make a claim that every pod of the namespace may write; returns the folder behind it."""
    if isinstance(cluster, ForeignCluster):
        pytest.skip("a foreign cluster's storage is not known; not supported yet")

    def make(claim: str = trainer.CHECKPOINT_CLAIM) -> pathlib.Path:
        folder = _shared_folder(cluster, namespace) / claim
        apply(cluster, trainer.shared_volume(namespace, folder, claim=claim))
        return folder

    return make


@pytest.fixture
def checkpoints(shared_claim) -> pathlib.Path:
    """The folder behind the claim ``checkpoints``."""
    return shared_claim()


def _shared_folder(cluster: Cluster, namespace: str) -> pathlib.Path:
    return cluster.root / "shared" / namespace
