# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What rights are for: for each of them, code of the project that makes the request.

A right for which nothing is here is one that nobody needs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import pathlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator

from controller.authorization import Caller as Reader
from controller.authorization import ClusterAccess
from controller.webhook_certificate import CertificateSecret
from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Event, JobKey
from rover_kf.client import RoverClient
from rover_kf.client.settings import ClientSettings
from rover_kf.cluster.kubernetes import informer
from rover_kf.cluster.kubernetes.cached_cluster import CachedCluster
from rover_kf.cluster.kubernetes.coordinator_tokens import CoordinatorTokens
from rover_kf.cluster.kubernetes.kubernetes_cluster import KubernetesCluster
from rover_kf.pipeline_steps import step_context
from rover_kf.webhook.certificates import issue
from testcluster.caller import Caller
from testcluster.commands import Kubectl
from testcluster.rights import Right

WEBHOOK, HOOK, HOSTS = "rover-kf-webhook", "inject.rover-kf.io", ("a.b.svc",)
ACCOUNT = "rover-kf-controller"
"""The controller's service account; the scene's namespace has one."""
YEARS = 10 * 365 * 86400.0
KINDS = {names.PYTORCHJOBS: names.PYTORCHJOB, names.TFJOBS: names.TFJOB}
CREW = "crew"
"""Of what job the scene's pod says that it is; there is none of that name."""
_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """Where deeds are done.

    Args:
        cluster: as its administrator.
        namespace: of the objects.
        watched: that the controller looks after; empty: all.
        node: one of the cluster's.
        pod: with a log, in the namespace.
        job: name of a PyTorchJob and of a TFJob there, both suspended.
        folder: for files.
        full: who has every right.
    """

    cluster: Kubectl
    namespace: str
    watched: str
    node: str
    pod: str
    job: str
    folder: pathlib.Path
    full: Caller

    def key(self, plural: str) -> JobKey:
        """One of the two jobs."""
        return JobKey(self.namespace, self.job, KINDS[plural])


Deed = Callable[[Caller, Scene], Iterable[str] | None]
"""Does it, and says what it had to leave undone, if it does not raise that or log it."""


def refusals(deed: Deed, caller: Caller, scene: Scene) -> list[str]:
    """What the API server refused while a caller did it; empty if nothing."""
    with _logged() as told:
        try:
            told.extend(deed(caller, scene) or ())
        except errors.RoverError as refusal:
            told.append(str(refusal))
    return [text for text in told if "forbidden" in text]


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    told: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("rover_kf")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield told
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _controllers(caller: Caller, scene: Scene) -> CachedCluster:
    return CachedCluster(caller.client, None, lambda _: None, namespace=scene.watched)


def _read_all(plural: str) -> Deed:
    return lambda caller, scene: _ignore(_mirror(caller, scene, plural)._read_all())


def _mirror(caller: Caller, scene: Scene, plural: str) -> informer.Informer:
    cluster = _controllers(caller, scene)
    return cluster._pods._informer if plural == "pods" else cluster._jobs[KINDS[plural]]


def _watch(plural: str) -> Deed:
    def deed(caller: Caller, scene: Scene) -> None:
        mirror = _mirror(caller, scene, plural)
        query = {**mirror._query, "resourceVersion": "0"}
        for _ in mirror._api.watch(mirror._path, what=plural, query=query, seconds=_SECONDS):
            return

    return deed


def _get_job(plural: str) -> Deed:
    return lambda caller, scene: _ignore(_plain(caller).get_job(scene.key(plural)))


def _list_jobs(_: str) -> Deed:
    """Both kinds at once; that TFJobs may not be listed is logged."""
    return lambda caller, scene: _ignore(_plain(caller).list_jobs(scene.namespace))


def _patch_job(plural: str) -> Deed:
    change = {"metadata": {"annotations": {"rover-kf.test/patched": "yes"}}}
    return lambda caller, scene: _ignore(_plain(caller).patch_job(scene.key(plural), change))


def _plain(caller: Caller) -> KubernetesCluster:
    return KubernetesCluster(caller.client)


def _ignore(_: object) -> None:
    """The answer does not matter, only that there is one."""


def _resize(caller: Caller, scene: Scene) -> None:
    key = JobKey(scene.namespace, CREW)
    (pod,) = _plain(scene.full).list_pods(key)
    more = {"requests": {"memory": "80Mi"}, "limits": {"memory": "80Mi"}}
    _controllers(caller, scene).resize_pod(key, pod, "main", more)


def _abandon_pod(caller: Caller, scene: Scene) -> None:
    (pod,) = _plain(scene.full).list_pods(JobKey(scene.namespace, CREW))
    _controllers(caller, scene).force_delete_pod(JobKey(scene.namespace, CREW, names.TFJOB), pod)


def _delete_pod(caller: Caller, scene: Scene) -> None:
    _controllers(caller, scene).delete_pod(JobKey(scene.namespace, CREW), scene.pod)


def _surroundings(caller: Caller, scene: Scene) -> Iterable[str]:
    return _controllers(caller, scene).namespace_objects(scene.namespace).unread


def _emit(caller: Caller, scene: Scene) -> None:
    event = Event("Tried", "a test's", at=time.time())
    _plain(caller).emit(scene.key(names.PYTORCHJOBS), event)


def _ask_who(caller: Caller, _: Scene) -> None:
    ClusterAccess(_plain(caller).api).caller("no token")


def _ask_what(caller: Caller, scene: Scene) -> None:
    ClusterAccess(_plain(caller).api).may_see(Reader("nobody", "", ()), scene.namespace)


def _secret(caller: Caller, scene: Scene) -> CertificateSecret:
    api = _plain(caller).api
    return CertificateSecret(api, namespace=scene.namespace, name=WEBHOOK, hook=HOOK, hosts=HOSTS)


def _make_secret(caller: Caller, scene: Scene) -> None:
    _secret(caller, scene).ensure(time.time())


def _renew_secret(caller: Caller, scene: Scene) -> None:
    _make_secret(scene.full, scene)
    _secret(caller, scene).ensure(time.time() + YEARS)


def _create_token(caller: Caller, scene: Scene) -> None:
    account = f"{scene.namespace}:{ACCOUNT}"
    CoordinatorTokens(_plain(caller).api, account).get(scene.key(names.PYTORCHJOBS))


def _trust(caller: Caller, scene: Scene) -> None:
    """Another authority for a moment: what was there is put back."""
    kind, path = "mutatingwebhookconfiguration", "/webhooks/0/clientConfig/caBundle"
    kept = json.loads(scene.cluster.kubectl("get", kind, WEBHOOK, "-o", "json"))
    bundle = kept["webhooks"][0]["clientConfig"]["caBundle"]
    back = json.dumps([{"op": "replace", "path": path, "value": bundle}])
    try:
        _secret(caller, scene).trust(issue(HOSTS, time.time()))
    finally:
        scene.cluster.kubectl("patch", kind, WEBHOOK, "--type=json", "-p", back)


def _cordon(caller: Caller, scene: Scene) -> None:
    try:
        _plain(caller).cordon_node(scene.node, "a test's")
    finally:
        scene.cluster.kubectl("uncordon", scene.node)
        scene.cluster.kubectl("annotate", "node", scene.node, f"{names.CORDONED_ANNOTATION}-")


def _delete_its_job(plural: str) -> Deed:
    return lambda caller, scene: _plain(caller).delete_job(scene.key(plural))


CONTROLLER: dict[Right, Deed] = {
    **{
        Right(names.KUBEFLOW_GROUP, plural, verb): deed(plural)
        for plural in KINDS
        for verb, deed in {
            "get": _get_job,
            "list": _read_all,
            "watch": _watch,
            "patch": _patch_job,
        }.items()
    },
    Right("", "pods", "list"): _read_all("pods"),
    Right("", "pods", "watch"): _watch("pods"),
    Right("", "pods/resize", "patch"): _resize,
    Right("", "nodes", "get"): lambda caller, scene: _ignore(
        _plain(caller).unreachable_nodes([scene.node])
    ),
    Right("", "nodes", "list"): lambda caller, _: _ignore(_plain(caller).list_nodes()),
    Right("", "resourcequotas", "list"): _surroundings,
    Right("autoscaling", "horizontalpodautoscalers", "list"): _surroundings,
    Right("", "events", "create"): _emit,
    Right("authentication.k8s.io", "tokenreviews", "create"): _ask_who,
    Right("authorization.k8s.io", "subjectaccessreviews", "create"): _ask_what,
    Right("", "secrets", "create"): _make_secret,
    Right("", "secrets", "get", WEBHOOK): _make_secret,
    Right("", "secrets", "update", WEBHOOK): _renew_secret,
    Right("", "serviceaccounts/token", "create", ACCOUNT): _create_token,
    **{
        Right(
            "admissionregistration.k8s.io", "mutatingwebhookconfigurations", verb, WEBHOOK
        ): _trust
        for verb in ("get", "patch")
    },
    Right("", "nodes", "patch"): _cordon,
    Right("", "pods/status", "patch"): _abandon_pod,
    Right("", "pods", "delete"): _delete_pod,
    **{Right(names.KUBEFLOW_GROUP, plural, "delete"): _delete_its_job(plural) for plural in KINDS},
}
"""In an order in which one can be done after another. What watches nodes is kopf
(scripts/nodes_watched.py)."""


def _create_job(plural: str) -> Deed:
    def deed(caller: Caller, scene: Scene) -> None:
        known = _plain(scene.full).get_job(scene.key(plural)).manifest
        name = f"made-{uuid.uuid4().hex[:8]}"
        metadata = {"name": name, "namespace": scene.namespace}
        _plain(caller).create_job({**known, "metadata": metadata, "status": {}})

    return deed


def _delete_job(plural: str) -> Deed:
    return lambda caller, scene: _plain(caller).delete_job(
        JobKey(scene.namespace, "gone", KINDS[plural])
    )


def _train(caller: Caller, scene: Scene) -> None:
    told = ClientSettings(scene.folder, "sqlite://", "kubernetes", "rover-kf-sidecar:1")
    script = scene.folder / "script.py"
    script.write_text("print('hello')\n")
    with RoverClient(_plain(caller), config=told) as rover:
        name = f"train-{uuid.uuid4().hex[:8]}"
        rover.train(script, name=name, namespace=scene.namespace, base_image="nowhere:1")


def _look_at_oneself(caller: Caller, scene: Scene) -> Iterable[str]:
    (scene.folder / "namespace").write_text(scene.namespace)
    environment = {"KFP_POD_NAME": scene.pod}
    cluster = _plain(caller)
    return step_context.read(cluster, environment=environment, account=scene.folder).notes


USERS: dict[Right, Deed] = {
    **{
        Right(names.KUBEFLOW_GROUP, plural, verb): deed(plural)
        for plural in KINDS
        for verb, deed in {
            "create": _create_job,
            "get": _get_job,
            "list": _list_jobs,
            "patch": _patch_job,
            "delete": _delete_job,
        }.items()
    },
    Right("", "pods", "get"): _look_at_oneself,
    Right("", "pods", "list"): lambda caller, scene: _ignore(
        _plain(caller).list_pods(scene.key(names.PYTORCHJOBS))
    ),
    Right("", "pods/log", "get"): lambda caller, scene: _ignore(
        _plain(caller).read_log(scene.key(names.PYTORCHJOBS), scene.pod, "main")
    ),
    Right("", "events", "list"): lambda caller, scene: _ignore(
        _plain(caller).list_events(scene.key(names.PYTORCHJOBS))
    ),
    Right("", "events", "create"): _emit,
    Right("", "configmaps", "create"): _train,
}
