# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the caller may do with jobs in a namespace, by the API server's own word."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from rover_kf import errors
from rover_kf.doctor.api_query import Api
from rover_kf.doctor.finding import Finding, unread

CHECK = "rights"
_REVIEWS = "/apis/authorization.k8s.io/v1"
_OF_ANOTHER = "subjectaccessreviews"


@dataclasses.dataclass(frozen=True, slots=True)
class Right:
    """One verb on one kind."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        below = f"/{self.subresource}" if self.subresource else ""
        return f"{self.verb} {self.resource}{below}"


@dataclasses.dataclass(frozen=True, slots=True)
class Rights:
    """What an account lacks."""

    account: str
    """Empty: the caller."""
    missing: tuple[Right, ...] = ()
    refusal: str = ""
    """Why it could not be asked."""


NEEDED = (
    Right("create", "kubeflow.org", "pytorchjobs"),
    Right("get", "kubeflow.org", "pytorchjobs"),
    Right("list", "kubeflow.org", "pytorchjobs"),
    Right("patch", "kubeflow.org", "pytorchjobs"),
    Right("delete", "kubeflow.org", "pytorchjobs"),
    Right("list", "", "pods"),
    Right("list", "", "events"),
)
"""To submit, look at, scale and delete jobs."""

USEFUL = {
    Right("get", "", "pods", "log"): "rover-kf logs",
    Right("get", "", "pods", "proxy"): "steps and goodput in rover-kf status, from outside",
    Right("create", "", "events"): "warnings of a job's injection told on the job",
    Right("create", "", "configmaps"): "rover-kf train with a script of this machine",
}
"""What each of them is for."""


def of_caller(api: Api, namespace: str) -> Rights:
    """Ask what the caller lacks in a namespace."""
    wanted = (*NEEDED, *USEFUL)
    return _asked(api, "selfsubjectaccessreviews", {}, wanted, namespace)


def of_another(api: Api, account: str, wanted: Sequence[Right], namespace: str = "") -> Rights:
    """Ask what an account lacks in a namespace, which its administrator may ask; empty: in all."""
    kind = f"namespaces/{namespace}/localsubjectaccessreviews" if namespace else _OF_ANOTHER
    return _asked(api, kind, {"user": account}, wanted, namespace)


def _asked(
    api: Api, kind: str, who: Mapping[str, str], wanted: Sequence[Right], namespace: str
) -> Rights:
    account = who.get("user", "")
    missing = []
    try:
        for right in wanted:
            attributes = dataclasses.asdict(right) | {"namespace": namespace}
            spec = {**_groups(who), "resourceAttributes": attributes}
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
        return Rights(account, refusal=str(error))
    return Rights(account, tuple(missing))


def _groups(who: Mapping[str, str]) -> dict[str, object]:
    """A service account's rights come by its groups, too."""
    if "user" not in who:
        return {}
    namespace = who["user"].split(":")[2]
    groups = ["system:authenticated", "system:serviceaccounts"]
    return {**who, "groups": [*groups, f"system:serviceaccounts:{namespace}"]}


def judge(seen: Rights, namespace: str) -> Iterator[Finding]:
    """What is needed first; then what is only useful."""
    if seen.refusal:
        yield unread(CHECK, seen.refusal, "create selfsubjectaccessreviews")
        return
    needed = [right for right in seen.missing if right in NEEDED]
    useful = [right for right in seen.missing if right in USEFUL]
    give = "kubectl -n {} create rolebinding rover-kf-user --clusterrole={} --user=YOU"
    if needed:
        what = f"you may not {', '.join(map(str, needed))} in {namespace}"
        mend = f"have an administrator run {give.format(namespace, 'kubeflow-edit')}"
        yield Finding(CHECK, "broken", what, mend)
    if useful:
        lost = ", ".join(f"{right} ({USEFUL[right]})" for right in useful)
        what = f"you may not {lost} in {namespace}"
        mend = f"have an administrator run {give.format(namespace, 'edit')}"
        yield Finding(CHECK, "warning", what, mend)
    if not seen.missing:
        yield Finding(CHECK, "good", f"you may submit, watch, scale and delete jobs in {namespace}")
