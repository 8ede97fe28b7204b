# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""All of it: looked at, judged, in the order in which to mend."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence

from rover_kf.api.jobs import Manifest
from rover_kf.doctor import (
    controller_checks,
    dry_run_objects,
    kubernetes_version,
    pod_checks,
    rbac,
    tls_secret,
    training_operator,
    volume_claims,
    webhook_checks,
)
from rover_kf.doctor.api_query import ApiClient, ObjectResult, dry_run_create, get
from rover_kf.doctor.finding import Finding
from rover_kf.injection.inject import inject, remove
from rover_kf.injection.settings import InjectionSettings
from rover_kf.job_kinds.registry import kind_of
from rover_kf.system.html_tables import NotebookTable


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Everything that was looked at; nothing of it is judged yet."""

    namespace: str
    now: float
    is_user_job: bool
    versions: kubernetes_version.ClusterVersions
    operator: training_operator.TrainingOperatorState
    admission: webhook_checks.WebhookState
    controller: controller_checks.ControllerState
    permissions: rbac.MissingPermissions
    pods: pod_checks.PodDryRuns
    claims: volume_claims.VolumeClaimState
    images: pod_checks.ImageState
    tls: tls_secret.TlsState
    namespace_object: ObjectResult
    trusted_account: str = ""
    """``namespace:name`` of the account that jobs patched by the caller take the word of."""


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis(NotebookTable):
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
            yield one.check, one.verdict, one.message, one.fix


def diagnose(
    api: ApiClient,
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
    facts = collect_facts(api, namespace, job, settings, time.time() if now is None else now)
    return Diagnosis(namespace, tuple(check_facts(facts)))


def collect_facts(
    api: ApiClient, namespace: str, job: Manifest | None, settings: InjectionSettings, now: float
) -> ClusterFacts:
    """All requests."""
    plain = dry_run_objects.example_job(namespace) if job is None else remove(job)
    patched = inject(dry_run_objects.without_label(plain, namespace), settings=settings).manifest
    seen = kubernetes_version.collect(api)
    path = kind_of(plain).path(namespace)
    by_hand = dry_run_create(
        api, path, "an injected job", dry_run_objects.without_label(patched, namespace)
    )
    labelled = dry_run_create(
        api, path, "a labelled job", dry_run_objects.with_label(plain, namespace)
    )
    place = get(api, f"/api/v1/namespaces/{namespace}", f"namespace {namespace}")
    asked = webhook_checks.collect(api, place, labelled)
    admitted = labelled.value is not None and pod_checks.sidecar_image(labelled.value)
    whole = labelled.value if labelled.value is not None and admitted else patched
    ours = controller_checks.collect(api, namespace, asked.namespace)
    return ClusterFacts(
        namespace,
        now,
        job is not None,
        seen,
        training_operator.collect(api, namespace, by_hand),
        asked,
        ours,
        rbac.review_caller(api, namespace),
        pod_checks.collect(
            api, namespace, dry_run_objects.first_pods(whole, namespace), seen.nodes
        ),
        volume_claims.collect(api, namespace, plain),
        pod_checks.collect_images(api, namespace, seen.nodes, whole),
        tls_secret.collect(api, namespace, ours.namespace, whole),
        place,
        settings.controller_account,
    )


def check_facts(facts: ClusterFacts) -> Iterator[Finding]:
    """What is said of it, pure."""
    there = facts.namespace_object.value is not None or bool(facts.namespace_object.denial)
    if not there:
        what = f"there is no namespace {facts.namespace}"
        yield Finding("namespace", "broken", what, f"kubectl create namespace {facts.namespace}")
    yield from kubernetes_version.check(facts.versions)
    yield from rbac.check(facts.permissions, facts.namespace)
    yield from training_operator.check(facts.operator, facts.now)
    yield from controller_checks.check(facts.controller)
    if facts.controller.single_namespace:
        yield from controller_checks.check_single_namespace(
            facts.controller, facts.admission, facts.trusted_account
        )
    else:
        yield from webhook_checks.check(facts.admission, facts.now)
    if there:
        yield from pod_checks.check(facts.pods, is_user_job=facts.is_user_job)
        yield from volume_claims.check(facts.claims)
        yield from pod_checks.check_images(facts.images)
        yield from tls_secret.check(facts.tls, facts.now)
