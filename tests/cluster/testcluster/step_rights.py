# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the service accounts of pipeline steps may do, as Kubeflow's own manifests have it.

``PIPELINE_RUNNER`` is the role of a stand-alone Kubeflow Pipelines (kubeflow/pipelines,
manifests/kustomize/base/pipeline/pipeline-runner-role.yaml); ``DEFAULT_EDITOR`` is what
``kubeflow-edit`` gives to a profile's account on the platform (kubeflow/manifests,
common/kubeflow-roles, with the Training Operator's kubeflow-training-edit). Of kinds that neither
this project nor these tests have anything to do with the latter leaves out those of batch, apps,
networking and autoscaling.
"""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
Rule = tuple[str, str, str]
"""API groups, resources and verbs, each separated by commas; ``core`` is the group without name."""

_READ = "get,list,watch"
_JOBS = "mpijobs,tfjobs,pytorchjobs,xgboostjobs,paddlejobs"
_WRITE = "create,delete,deletecollection,patch,update"

PIPELINE_RUNNER: tuple[Rule, ...] = (
    ("core", "secrets", "get"),
    ("core", "configmaps", "get,watch,list"),
    ("core", "persistentvolumes,persistentvolumeclaims", "*"),
    ("snapshot.storage.k8s.io", "volumesnapshots", "create,delete,get"),
    (
        "argoproj.io",
        "workflows,workflowtaskresults,workflowtasksets,workflowtasksets/status",
        "get,create,patch,watch,list,update",
    ),
    ("core", "pods,pods/exec,pods/log,services", "*"),
    ("core,apps,extensions", "deployments,replicasets", "*"),
    ("kubeflow.org", "*", "*"),
    ("batch", "jobs", "*"),
    ("machinelearning.seldon.io", "seldondeployments", "*"),
    ("mlflow.kubeflow.org", "experiments", "get,list,create,update"),
)

DEFAULT_EDITOR: tuple[Rule, ...] = (
    ("core", "pods/attach,pods/exec,pods/portforward,pods/proxy,secrets,services/proxy", _READ),
    ("core", "pods,pods/attach,pods/exec,pods/portforward,pods/proxy", _WRITE),
    ("core", "configmaps,endpoints,persistentvolumeclaims,secrets", _WRITE),
    ("core", "serviceaccounts,services,services/proxy", _WRITE),
    ("core", "configmaps,endpoints,persistentvolumeclaims,persistentvolumeclaims/status", _READ),
    ("core", "pods,pods/log,pods/status,serviceaccounts,services,services/status", _READ),
    ("core", "bindings,events,limitranges,namespaces,namespaces/status", _READ),
    ("core", "resourcequotas,resourcequotas/status", _READ),
    ("kubeflow.org", _JOBS, "create,delete,get,list,patch,update,watch"),
    ("kubeflow.org", _JOBS.replace("jobs", "jobs/status"), "get"),
)


def account(namespace: str, name: str, rules: tuple[Rule, ...]) -> list[Object]:
    """A service account with these rights in its namespace, and no others."""
    metadata = {"name": name, "namespace": namespace}
    api = "rbac.authorization.k8s.io"
    granted = [
        {
            "apiGroups": ["" if group == "core" else group for group in groups.split(",")],
            "resources": resources.split(","),
            "verbs": verbs.split(","),
        }
        for groups, resources, verbs in rules
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": granted},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        },
    ]
