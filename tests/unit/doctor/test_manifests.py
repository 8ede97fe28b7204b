# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The doctor looks for what the manifests install."""

from __future__ import annotations

import pathlib

import pytest
import yaml

from rover_kf.doctor import controller_checks, webhook_checks
from rover_kf.doctor.rbac import Permission

MANIFESTS = pathlib.Path(__file__).parents[3] / "manifests"


def _documents(path: str) -> list[dict]:
    return list(yaml.safe_load_all((MANIFESTS / path).read_text()))


@pytest.mark.parametrize(
    ("file", "kind", "needed"),
    [
        ("base/rbac/rbac.yaml", "ClusterRole", controller_checks.REQUIRED),
        ("overlays/namespaced/rbac.yaml", "Role", controller_checks.REQUIRED_NAMESPACED),
    ],
)
def test_the_controllers_rights_are_those_of_its_role(file, kind, needed):
    """Each rule that names no single object is asked for, and nothing else."""
    (role,) = (item for item in _documents(file) if item["kind"] == kind)
    given = {
        Permission(verb, group, *resource.split("/"))
        for rule in role["rules"]
        if "resourceNames" not in rule
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert set(needed) == given


def test_the_webhook_is_the_one_that_is_installed():
    """Names of Service, configuration and webhook are those of the manifests."""
    service, configuration = _documents("base/webhook/webhook.yaml")
    assert (
        service["metadata"]["name"] == configuration["metadata"]["name"] == webhook_checks.WEBHOOK
    )
    (hook,) = configuration["webhooks"]
    assert hook["name"] == webhook_checks.HOOK
    assert hook["clientConfig"]["service"]["namespace"] == webhook_checks.NAMESPACE
