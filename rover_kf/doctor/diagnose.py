# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""All of it: looked at, judged, in the order in which to mend."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence

from rover_kf.api import names
from rover_kf.api.jobs import Manifest
from rover_kf.doctor import (
    controller_checks,
    dry_run_objects,
    images,
    kubernetes_version,
    namespaced,
    pod_checks,
    rbac,
    tls_secret,
    training_operator,
    volume_claims,
    webhook_checks,
)
from rover_kf.doctor.api_query import Answer, Api, ask, try_out
from rover_kf.doctor.controller_checks import Controller
from rover_kf.doctor.finding import Finding
from rover_kf.doctor.images import Images
from rover_kf.doctor.kubernetes_version import Versions
from rover_kf.doctor.pod_checks import Pods
from rover_kf.doctor.rbac import Rights
from rover_kf.doctor.tls_secret import Encryption
from rover_kf.doctor.training_operator import TrainingOperator
from rover_kf.doctor.volume_claims import Claims
from rover_kf.doctor.webhook_checks import Admission
from rover_kf.injection.adapters import adapter_for
from rover_kf.injection.inject import inject, remove
from rover_kf.injection.settings import InjectionSettings
from rover_kf.system.html_tables import Shown


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was looked at; nothing of it is judged yet."""

    namespace: str
    now: float
    own: bool
    """Whether the job is the caller's own."""
    versions: Versions
    operator: TrainingOperator
    admission: Admission
    controller: Controller
    rights: Rights
    pods: Pods
    claims: Claims
    images: Images
    encryption: Encryption
    place: Answer
    """The namespace."""
    trusted: str = ""
    """``namespace:name`` of the account that jobs patched by the caller take the word of."""


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis(Shown):
    """What was found, in the order in which to mend."""

    namespace: str
    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        """What keeps jobs from running as they should."""
        return tuple(finding for finding in self.findings if finding.verdict == "broken")

    def _html_title(self) -> str:
        return f"namespace {self.namespace}: {len(self.broken)} broken"

    def _html_header(self) -> Sequence[str]:
        return ("check", "verdict", "what", "mend")

    def _html_rows(self) -> Iterable[Sequence[object]]:
        for one in self.findings:
            yield one.check, one.verdict, one.what, one.mend


def examine(
    api: Api,
    namespace: str,
    job: Manifest | None = None,
    *,
    settings: InjectionSettings,
    now: float | None = None,
) -> Diagnosis:
    """Find what is missing; creates nothing.

    Args:
        api: of the cluster, with the caller's credentials.
        namespace: that jobs go to.
        job: the caller's own, as a plain manifest; None tries a small example.
        settings: what a patch by the caller's own hand would inject.
        now: Unix seconds; None is the clock's.

    Raises:
        ClusterUnavailable: the API server does not answer at all.
        InputError: the job cannot be injected.
    """
    facts = look(api, namespace, job, settings, time.time() if now is None else now)
    return Diagnosis(namespace, tuple(judge(facts)))


def look(
    api: Api, namespace: str, job: Manifest | None, settings: InjectionSettings, now: float
) -> Facts:
    """All requests."""
    plain = dry_run_objects.example(namespace) if job is None else remove(job)
    patched = inject(dry_run_objects.unlabelled(plain, namespace), settings=settings).manifest
    seen = kubernetes_version.look(api)
    group = f"/apis/{names.KUBEFLOW_GROUP}/{names.KUBEFLOW_VERSION}"
    path = f"{group}/namespaces/{namespace}/{adapter_for(plain).plural}"
    by_hand = try_out(api, path, "an injected job", dry_run_objects.unlabelled(patched, namespace))
    labelled = try_out(api, path, "a labelled job", dry_run_objects.labelled(plain, namespace))
    place = ask(api, f"/api/v1/namespaces/{namespace}", f"namespace {namespace}")
    asked = webhook_checks.look(api, place, labelled)
    admitted = labelled.found is not None and images.sidecar_of(labelled.found)
    whole = labelled.found if labelled.found is not None and admitted else patched
    ours = controller_checks.look(api, namespace, asked.namespace)
    return Facts(
        namespace,
        now,
        job is not None,
        seen,
        training_operator.look(api, namespace, by_hand),
        asked,
        ours,
        rbac.of_caller(api, namespace),
        pod_checks.look(api, namespace, dry_run_objects.pods(whole, namespace), seen.nodes),
        volume_claims.look(api, namespace, plain),
        images.look(api, namespace, seen.nodes, whole),
        tls_secret.look(api, namespace, ours.namespace, whole),
        place,
        settings.controller_account,
    )


def judge(facts: Facts) -> Iterator[Finding]:
    """What is said of it, pure."""
    there = facts.place.found is not None or bool(facts.place.refusal)
    if not there:
        what = f"there is no namespace {facts.namespace}"
        yield Finding("namespace", "broken", what, f"kubectl create namespace {facts.namespace}")
    yield from kubernetes_version.judge(facts.versions)
    yield from rbac.judge(facts.rights, facts.namespace)
    yield from training_operator.judge(facts.operator, facts.now)
    yield from controller_checks.judge(facts.controller)
    if facts.controller.alone:
        yield from namespaced.judge(facts.controller, facts.admission, facts.trusted)
    else:
        yield from webhook_checks.judge(facts.admission, facts.now)
    if there:
        yield from pod_checks.judge(facts.pods, own=facts.own)
        yield from volume_claims.judge(facts.claims)
        yield from images.judge(facts.images)
        yield from tls_secret.judge(facts.encryption, facts.now)
