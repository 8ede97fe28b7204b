# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An install for one namespace alone is judged by what it can do, not by what a cluster's has."""

from __future__ import annotations

import copy
import dataclasses
import pathlib
import shutil
import subprocess

import pytest
import yaml

from rover_kf.api import names
from rover_kf.cluster.kubernetes.api import KubernetesApi
from rover_kf.doctor import controller_checks, diagnose
from rover_kf.doctor.api_query import ObjectResult
from rover_kf.doctor.diagnose import check_facts
from rover_kf.doctor.rbac import MissingPermissions
from rover_kf.injection.settings import InjectionSettings
from tests.support import healthy_cluster as sound
from tests.support.faults.api_stand_in import StandIn, failure, serving

FOLDER = pathlib.Path(__file__).parents[3] / "manifests" / "overlays" / "namespaced"
TEAM, HOME = sound.NAMESPACE, "rover-kf-system"
ACCOUNT = f"{TEAM}:rover-kf-controller"
REVIEWS = "/apis/authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def overlay():
    """Objects of the overlay by their kind, as kubectl renders them, in the team's namespace."""
    program = shutil.which("kubectl")
    assert program, "install kubectl: it renders the overlays"
    done = subprocess.run(
        [program, "kustomize", FOLDER], capture_output=True, text=True, check=True
    )
    text = done.stdout.replace(f"namespace: {HOME}", f"namespace: {TEAM}")
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


class TeamsServer:
    """What the API server answers to who has all rights in the team's namespace and none outside.

    Args:
        stand_in: that serves it.
        overlay: what is installed there.
    """

    def __init__(self, stand_in: StandIn, overlay: dict[str, dict]) -> None:
        self._stand_in, self._rules = stand_in, overlay["Role"]["rules"]
        self.deployment = copy.deepcopy(overlay["Deployment"])
        self.deployment["status"] = {"availableReplicas": 1}
        stand_in.hooks.append(self._answer)

    def _answer(self, method: str, path: str) -> tuple[int, object] | None:
        group = {"name": "kubeflow.org", "versions": [{"version": "v1"}]}
        open_to_all = {
            "/version": {"gitVersion": "v1.34.4"},
            "/apis": {"groups": [group]},
            "/apis/kubeflow.org/v1": {"resources": [{"name": "pytorchjobs"}, {"name": "tfjobs"}]},
        }
        if path in open_to_all:
            return 200, open_to_all[path]
        if path == f"{REVIEWS}/selfsubjectaccessreviews":
            return 201, {"status": {"allowed": True}}
        if f"/namespaces/{TEAM}" not in path:
            return failure(403, "Forbidden", f"{path} is forbidden")
        if path == f"{REVIEWS}/namespaces/{TEAM}/localsubjectaccessreviews":
            return 201, {"status": {"allowed": self._allows(self._stand_in.requests[-1][3])}}
        if path == f"/apis/apps/v1/namespaces/{TEAM}/deployments":
            return 200, {"metadata": {}, "items": [self.deployment]}
        if path == f"/api/v1/namespaces/{TEAM}":
            return 200, sound.place().value
        return (201, self._stand_in.requests[-1][3]) if method == "POST" else None

    def _allows(self, review: dict) -> bool:
        assert review["metadata"] == {"namespace": TEAM}
        spec, asked = review["spec"], review["spec"]["resourceAttributes"]
        assert (spec["user"], asked["namespace"]) == (f"system:serviceaccount:{ACCOUNT}", TEAM)
        named = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        return any(
            asked["verb"] in rule["verbs"]
            and asked["group"] in rule["apiGroups"]
            and named in rule["resources"]
            for rule in self._rules
        )


@pytest.fixture
def server(overlay):
    with serving() as stand_in:
        found = TeamsServer(stand_in, overlay)
        found.api = KubernetesApi(stand_in.client())
        yield found


def _examine(server, account=ACCOUNT):
    settings = InjectionSettings(sound.IMAGE, account)
    found = diagnose(server.api, TEAM, settings=settings, now=sound.NOW)
    return {item.check: item for item in found.findings}


def test_the_overlay_is_found_to_be_in_order(server):
    """By who has rights in the namespace alone: nothing is broken, and of what is installed
    nothing is unknown."""
    found = _examine(server)
    assert [item for item in found.values() if item.verdict in ("broken", "warning")] == []
    ours = ("controller", "controller-rights", "webhook", "controller-account")
    assert [found[check].verdict for check in ours] == ["good"] * 4
    assert f"for the jobs of {TEAM} alone" in found["controller"].message
    assert (
        f"the {len(controller_checks.REQUIRED_NAMESPACED)} rights"
        in found["controller-rights"].message
    )
    assert found["nodes"].verdict == "unknown"


def test_a_right_that_the_overlay_lost_is_found(server):
    """The mending names the overlay, not the cluster's manifests."""
    server._rules = [rule for rule in server._rules if rule["resources"] != ["pods/resize"]]
    found = _examine(server)["controller-rights"]
    assert (found.verdict, found.message.split("may not ")[1]) == ("broken", "patch pods/resize")
    assert "overlays/namespaced" in found.fix


def test_a_controller_of_another_namespace_is_not_taken_for_this_ones(server):
    """One that runs here and looks after elsewhere leaves this namespace's jobs alone."""
    (container,) = server.deployment["spec"]["template"]["spec"]["containers"]
    (told,) = (one for one in container["env"] if one["name"] == names.ENV_WATCH_NAMESPACE)
    told.clear()
    told |= {"name": names.ENV_WATCH_NAMESPACE, "value": "elsewhere"}
    found = _examine(server)
    assert found["controller"].verdict == "unknown"
    assert "controller-account" not in found
    told["value"] = TEAM
    assert _examine(server)["controller"].verdict == "good"


def _beside(**changed):
    facts = sound.namespaced()
    return dataclasses.replace(facts, admission=dataclasses.replace(facts.admission, **changed))


LACKING = MissingPermissions(
    f"system:serviceaccount:{ACCOUNT}", (controller_checks.REQUIRED_NAMESPACED[3],)
)
STOPPED = {"spec": {"replicas": 0, "template": {"spec": {"containers": [{"image": "c:1"}]}}}}

CASES = [
    (sound.namespaced(), "webhook", "good", "jobs of team alone", ""),
    (sound.namespaced(trusted=""), "controller-account", "warning", "of no controller",
     f"export ROVER_CONTROLLER_ACCOUNT={ACCOUNT}"),
    (sound.namespaced(trusted="other:one"), "controller-account", "warning", "only of other:one",
     "ROVER_CONTROLLER_ACCOUNT"),
    (sound.namespaced(rights=LACKING), "controller-rights", "broken", "may not patch pytorchjobs",
     "overlays/namespaced"),
    (sound.namespaced(rights=MissingPermissions("", denial="no")), "controller-rights",
     "unknown", "no",
     "create localsubjectaccessreviews"),
    (sound.namespaced(deployments=dataclasses.replace(
        sound.controller().deployments, items=(STOPPED,))),
     "controller", "broken", "scaled to 0", "-n team deploy/rover-kf-controller --replicas=1"),
    (_beside(configuration=sound.admission().configuration), "webhook", "warning",
     "in rover-kf-system) beside the controller of team", "keep one"),
    (_beside(labelled_dry_run=ObjectResult(sound.injected())), "webhook", "broken",
     "two controllers",
     "keep one"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "check", "verdict", "words", "mend"), CASES)
def test_each_fault_is_named_with_its_cure(facts, check, verdict, words, mend):
    """One changed fact changes one finding; its words have the fact and what to do."""
    (found,) = (item for item in check_facts(facts) if item.check == check)
    assert found.verdict == verdict
    assert words in found.message
    assert mend in found.fix
    assert bool(found.fix) == (verdict != "good")
