# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the caller may do with jobs in a namespace, by the API server's own word."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from rover_kf import errors
from rover_kf.doctor.api_query import ApiClient
from rover_kf.doctor.finding import Finding, unknown
from rover_kf.job_kinds.pytorchjob.kind import PYTORCHJOB

CHECK = "rights"
_REVIEWS = "/apis/authorization.k8s.io/v1"
_SUBJECT_REVIEWS = "subjectaccessreviews"


@dataclasses.dataclass(frozen=True, slots=True)
class Permission:
    """One verb on one kind."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        below = f"/{self.subresource}" if self.subresource else ""
        return f"{self.verb} {self.resource}{below}"


def permissions(*rows: tuple[str, str, str]) -> tuple[Permission, ...]:
    """Rows of an API group, a resource (or ``resource/subresource``) and verbs, one each."""
    return tuple(
        Permission(verb, group, *resource.split("/"))
        for group, resource, verbs in rows
        for verb in verbs.split()
    )


@dataclasses.dataclass(frozen=True, slots=True)
class MissingPermissions:
    """What an account lacks."""

    account: str
    """Empty: the caller."""
    missing: tuple[Permission, ...] = ()
    denial: str = ""


REQUIRED = permissions(
    (PYTORCHJOB.group, PYTORCHJOB.plural, "create get list patch delete"),
    ("", "pods", "list"),
    ("", "events", "list"),
)
"""To submit, look at, scale and delete jobs."""

OPTIONAL = {
    Permission("get", "", "pods", "log"): "rover-kf logs",
    Permission("get", "", "pods", "proxy"): "steps and goodput in rover-kf status, from outside",
    Permission("create", "", "events"): "warnings of a job's injection told on the job",
    Permission("create", "", "configmaps"): "rover-kf train with a script of this machine",
}
"""What each of them is for."""


def review_caller(api: ApiClient, namespace: str) -> MissingPermissions:
    """Ask what the caller lacks in a namespace."""
    wanted = (*REQUIRED, *OPTIONAL)
    return _review(api, "selfsubjectaccessreviews", {}, wanted, namespace)


def review_account(
    api: ApiClient, account: str, required: Sequence[Permission], namespace: str = ""
) -> MissingPermissions:
    """Ask what an account lacks in a namespace, which its administrator may ask; empty: in all."""
    kind = f"namespaces/{namespace}/localsubjectaccessreviews" if namespace else _SUBJECT_REVIEWS
    return _review(api, kind, {"user": account}, required, namespace)


def _review(
    api: ApiClient,
    kind: str,
    who: Mapping[str, str],
    required: Sequence[Permission],
    namespace: str,
) -> MissingPermissions:
    account = who.get("user", "")
    missing = []
    try:
        for right in required:
            attributes = dataclasses.asdict(right) | {"namespace": namespace}
            spec = {**_subject(who), "resourceAttributes": attributes}
            metadata = {"namespace": namespace} if "/" in kind else {}
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "metadata": metadata,
                "spec": spec,
            }
            reply = api.request("POST", f"{_REVIEWS}/{kind}", what=f"whether {right}", body=body)
            if not reply["status"]["allowed"]:
                missing.append(right)
    except errors.RoverError as error:
        return MissingPermissions(account, denial=str(error))
    return MissingPermissions(account, tuple(missing))


def _subject(who: Mapping[str, str]) -> dict[str, object]:
    """A service account's rights come by its groups, too."""
    if "user" not in who:
        return {}
    namespace = who["user"].split(":")[2]
    groups = ["system:authenticated", "system:serviceaccounts"]
    return {**who, "groups": [*groups, f"system:serviceaccounts:{namespace}"]}


def check(observed: MissingPermissions, namespace: str) -> Iterator[Finding]:
    """What is needed first; then what is only useful."""
    if observed.denial:
        yield unknown(CHECK, observed.denial, "create selfsubjectaccessreviews")
        return
    needed = [right for right in observed.missing if right in REQUIRED]
    useful = [right for right in observed.missing if right in OPTIONAL]
    give = "kubectl -n {} create rolebinding rover-kf-user --clusterrole={} --user=YOU"
    if needed:
        what = f"you may not {', '.join(map(str, needed))} in {namespace}"
        mend = f"have an administrator run {give.format(namespace, 'kubeflow-edit')}"
        yield Finding(CHECK, "broken", what, mend)
    if useful:
        lost = ", ".join(f"{right} ({OPTIONAL[right]})" for right in useful)
        what = f"you may not {lost} in {namespace}"
        mend = f"have an administrator run {give.format(namespace, 'edit')}"
        yield Finding(CHECK, "warning", what, mend)
    if not observed.missing:
        yield Finding(CHECK, "good", f"you may submit, watch, scale and delete jobs in {namespace}")
