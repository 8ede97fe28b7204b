# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The alerts about the controller fire and clear, on a real Prometheus that scrapes what PodMonitor
and ServiceMonitor choose on the real cluster.

Debian's Prometheus finds no targets in Kubernetes by itself: the test reads the objects that the
monitors select and tells it. A minute of the rules is a second here (prometheus_server.py). Alerts
about jobs: tests/faults/test_alerts.py.
"""

from __future__ import annotations

import json
import time

import pytest
import yaml
from testcluster import deployment, objects
from testcluster.foreign import ForeignCluster
from testcluster.objects import apply

from rover_kf.api import names
from tests.support.servers.prometheus_server import (
    MONITORING,
    prometheus,
    scrape_config,
    scrape_of,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(400)

HURRY = 60.0
JOB = "asleep"
AWAY = "postgresql+psycopg://nobody@127.0.0.1:1/nothing"
"""A database where nobody listens."""


@pytest.fixture
def metrics_service(cluster, controller):
    """The Service that the ServiceMonitor selects."""
    documents = yaml.safe_load_all((MONITORING / "scrape.yaml").read_text())
    (service,) = [one for one in documents if one["kind"] == "Service"]
    service["metadata"]["namespace"] = controller
    apply(cluster, [service])
    yield service["metadata"]
    cluster.kubectl("-n", controller, "delete", "service", service["metadata"]["name"])


@pytest.fixture
def server(cluster, request, tmp_path):
    """Prometheus beside the cluster, whose pods it reaches by their addresses."""
    if isinstance(cluster, ForeignCluster):
        pytest.skip("the pods of --kubeconfig are not reached from here")
    request.getfixturevalue("metrics_service")
    scraped = [
        scrape_config(name, kind, _found(tmp_path, kind), hurry=HURRY)
        for name, kind in (("sidecars", "PodMonitor"), ("rover-kf-controller", "ServiceMonitor"))
    ]
    with prometheus(tmp_path, scraped, hurry=HURRY) as running:
        yield running


def _found(folder, kind):
    """Where targets of a monitor are told, and the labels that the monitor itself sets."""
    own = [
        {"target_label": one["targetLabel"], "replacement": one["replacement"]}
        for one in scrape_of(kind).get("relabelings", ())
    ]
    files = {"files": [str(folder / f"{kind}.json")]}
    return {"file_sd_configs": [files], "relabel_configs": own}


def _discover(cluster, folder):
    """Tell Prometheus what the monitors choose now, as the Operator's configuration would."""
    documents = list(yaml.safe_load_all((MONITORING / "scrape.yaml").read_text()))
    (monitor,) = [one["spec"] for one in documents if one["kind"] == "PodMonitor"]
    (chosen,) = monitor["selector"]["matchExpressions"]
    assert chosen["operator"] == "Exists"
    path = f"/api/v1/pods?labelSelector={chosen['key']}"
    pods = json.loads(cluster.get_raw(path))["items"]
    _tell(
        folder / "PodMonitor.json",
        [
            (pod["metadata"], pod["status"].get("podIP"), port["containerPort"])
            for pod in pods
            for container in pod["spec"].get("initContainers", ())
            for port in container.get("ports", ())
            if port["name"] == scrape_of("PodMonitor")["port"]
        ],
    )
    (monitor,) = [one["spec"] for one in documents if one["kind"] == "ServiceMonitor"]
    ((key, value),) = monitor["selector"]["matchLabels"].items()
    path = f"/api/v1/namespaces/{deployment.NAMESPACE}/endpoints?labelSelector={key}%3D{value}"
    subsets = [
        subset
        for item in json.loads(cluster.get_raw(path))["items"]
        for subset in item.get("subsets") or ()
    ]
    _tell(
        folder / "ServiceMonitor.json",
        [
            ({"namespace": deployment.NAMESPACE, "name": ""}, one["ip"], port["port"])
            for subset in subsets
            for one in subset.get("addresses") or ()
            for port in subset["ports"]
            if port["name"] == scrape_of("ServiceMonitor")["port"]
        ],
    )


def _tell(path, found):
    told = [
        {
            "targets": [f"{address}:{port}"],
            "labels": {"namespace": metadata["namespace"], "pod": metadata["name"]},
        }
        for metadata, address, port in found
        if address
    ]
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(told))
    aside.replace(path)


def _history(cluster, namespace, url):
    """Set where the controller keeps its history; an empty one is what the manifests say."""
    word = f"ROVER_HISTORY={url}" if url else "ROVER_HISTORY-"
    cluster.kubectl("-n", namespace, "set", "env", f"deploy/{deployment.DEPLOYMENT}", word)


@pytest.fixture
def asleep(cluster, namespace, toolbox_image, controller):  # noqa: ARG001 - it injects the job
    """A job with a sidecar and a trainer that does nothing; its namespace."""
    job = objects.pytorchjob(JOB, namespace, ["sleep", "600"], workers=1)
    job["metadata"].setdefault("labels", {})[names.INJECT_LABEL] = "true"
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    worker["containers"][0] |= {"image": toolbox_image, "imagePullPolicy": "IfNotPresent"}
    apply(cluster, [job])
    return namespace


@pytest.mark.parametrize("namespace", ["baseline"], indirect=True)
def test_the_controllers_alerts_fire_and_clear(cluster, controller_down, asleep, server, tmp_path):
    """A sidecar of a real pod and the controller are scraped; a controller that is away is told, so
    is one without its history, and neither when both are back."""
    controller = deployment.NAMESPACE
    sidecars = f'query?query=rover_kf_sidecar_up{{namespace="{asleep}"}}'

    def scraped():
        _discover(cluster, tmp_path)
        found = server.ask(sidecars)["result"]
        return [one["metric"] for one in found if one["value"][1] == "1"]

    (found,) = eventually(scraped, within=120, every=0.3, what="the sidecar is scraped")
    assert (found["job"], found["pod"]) == (JOB, f"{JOB}-worker-0")
    ours = {"RoverKfControllerDown", "RoverKfHistoryUnavailable"}

    def firing():
        _discover(cluster, tmp_path)
        return {name for name, _ in server.firing()} & ours

    eventually(lambda: not firing(), within=60, every=0.3, what="no alert of a sound controller")
    waited = {}
    begun = time.monotonic()
    controller_down()
    eventually(lambda: firing() == {"RoverKfControllerDown"}, within=60, every=0.2, what="down")
    waited["RoverKfControllerDown fires"] = round(time.monotonic() - begun, 1)
    _history(cluster, controller, AWAY)
    begun = time.monotonic()
    deployment.scale(cluster, 1)
    try:
        eventually(
            lambda: firing() == {"RoverKfHistoryUnavailable"}, within=120, every=0.2, what="away"
        )
        waited["RoverKfHistoryUnavailable fires"] = round(time.monotonic() - begun, 1)
    finally:
        _history(cluster, controller, "")
    deployment.wait(cluster)
    eventually(lambda: not firing(), within=120, every=0.3, what="clear")
    print(json.dumps(waited))
