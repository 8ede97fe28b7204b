# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Labelled jobs of both kinds, as far as the caller may list them."""

from __future__ import annotations

from collections.abc import Iterator

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import ObservedJob
from rover_kf.cluster import kubernetes_objects as objects
from rover_kf.cluster.kubernetes_api import Api
from rover_kf.cluster.refusals import Refusals

VERSION = f"{names.KUBEFLOW_GROUP}/{names.KUBEFLOW_VERSION}"
LABELLED = {"labelSelector": f"{names.INJECT_LABEL}=true"}
_TFJOBS = "TFJobs"


def collection(namespace: str | None, plural: str = names.PYTORCHJOBS) -> str:
    """Path of the jobs of a namespace, or of all with None."""
    where = "" if namespace is None else f"/namespaces/{namespace}"
    return f"/apis/{VERSION}{where}/{plural}"


def labelled(api: Api, refusals: Refusals, namespace: str | None) -> tuple[ObservedJob, ...]:
    """Labelled PyTorchJobs, then TFJobs.

    A cluster need not know TFJobs, nor need a user's role name them: PyTorchJobs are listed then.

    Raises:
        InputError: PyTorchJobs may not be listed.
    """
    found = list(_of_kind(api, namespace, names.PYTORCHJOB, names.PYTORCHJOBS))
    try:
        found += _of_kind(api, namespace, names.TFJOB, names.TFJOBS)
    except (errors.InputError, errors.KindUnknown) as refusal:
        refusals.refused(_TFJOBS, "PyTorchJobs alone are listed", refusal)
    else:
        refusals.read(_TFJOBS)
    return tuple(found)


def _of_kind(api: Api, namespace: str | None, kind: str, plural: str) -> Iterator[ObservedJob]:
    what = f"{plural} of {namespace or 'all namespaces'}"
    for item in api.items(collection(namespace, plural), what=what, query=LABELLED):
        # A list's items do not name their kind.
        yield objects.job_of({"apiVersion": VERSION, "kind": kind, **item})
