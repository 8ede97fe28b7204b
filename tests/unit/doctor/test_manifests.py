# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The doctor looks for what the manifests install."""

from __future__ import annotations

import pathlib

import yaml

from rover_kf.doctor import admission, controller
from rover_kf.doctor.rights import Right

BASE = pathlib.Path(__file__).parents[3] / "manifests" / "base"


def _documents(path: str) -> list[dict]:
    return list(yaml.safe_load_all((BASE / path).read_text()))


def test_the_controllers_rights_are_those_of_its_role():
    """Each rule that names no single object is asked for, and nothing else."""
    (role,) = (item for item in _documents("rbac/rbac.yaml") if item["kind"] == "ClusterRole")
    given = {
        Right(verb, group, *resource.split("/"))
        for rule in role["rules"]
        if "resourceNames" not in rule
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert set(controller.NEEDED) == given


def test_the_webhook_is_the_one_that_is_installed():
    """Names of Service, configuration and webhook are those of the manifests."""
    service, configuration = _documents("webhook/webhook.yaml")
    assert service["metadata"]["name"] == configuration["metadata"]["name"] == admission.WEBHOOK
    (hook,) = configuration["webhooks"]
    assert hook["name"] == admission.HOOK
    assert hook["clientConfig"]["service"]["namespace"] == admission.NAMESPACE
