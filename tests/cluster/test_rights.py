# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Every account may do what docs/rbac.md says and nothing else; and it needs each of its rights.

Asked of the real API server, by impersonation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator

import pytest
from testcluster import deeds, deployment, jobs, objects, settings
from testcluster.caller import Caller, account
from testcluster.deeds import CREW, Deed, Scene
from testcluster.errors import CommandFailed
from testcluster.objects import apply
from testcluster.rights import Right, every
from testcluster.roles import Roles

from rover_kf.api import names
from rover_kf.injection.inject import inject
from rover_kf.injection.settings import InjectionSettings
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("controller")]

SECTIONS = dict(
    re.findall(
        r"^## (.+)\n((?:.*\n)+?)(?=^## |\Z)",
        (settings.REPOSITORY / "docs" / "rbac.md").read_text(),
        re.MULTILINE,
    )
)
CONTROLLER = "The controller"
COMPONENTS = tuple(title for title in SECTIONS if "the component" in title)
NAMESPACED = "The controller in one namespace alone (`overlays/namespaced`)"
USERS = "Users and steps of pipelines (`overlays/kubeflow`)"
BY_KOPF = {Right("", "nodes", "watch")}


def granted(role: str, *titles: str) -> set[Right]:
    """What docs/rbac.md says that a kind of role gives; of one name, if it is followed by one."""
    found = set()
    for line in "".join(SECTIONS[title] for title in titles).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or not f"{cells[0]} ".startswith(f"{role} "):
            continue
        _, resources, named, verbs = cells
        for resource in resources.split(", "):
            group, _, kind = resource.partition("/")
            for verb in verbs.split(", "):
                group = "" if group == "core" else group
                found.add(Right(group, kind, verb, "" if named == "any" else named))
    return found


@pytest.fixture
def caller(cluster):
    return lambda user: Caller(cluster.kubeconfig, user)


@pytest.fixture
def roles(cluster, namespace) -> Iterator[Roles]:
    made = Roles(cluster, namespace)
    yield made
    made.forget()


@pytest.fixture
def stranger(caller, namespace) -> Caller:
    """An account that nobody gave anything."""
    return caller(account(namespace, "stranger"))


@dataclasses.dataclass(frozen=True)
class Checked:
    questions: int
    allowed: int


def check(
    who: Caller, stranger: Caller, home: str, everywhere: Collection[Right], here: Collection[Right]
) -> Checked:
    """That it may do in all namespaces, and at home, exactly this beyond what a stranger may."""
    asked = every(stranger.discovered())
    assert len(asked) > 800
    for place, rights in (("", {*everywhere}), (home, {*everywhere, *here})):
        beyond = who.allowed(asked, place) - stranger.allowed(asked, place)
        assert beyond == {right for right in rights if not right.name}
    named = [right for right in (*everywhere, *here) if right.name]
    for right in named:
        assert who.may(right, home)
        assert not who.may(dataclasses.replace(right, name="another"), home)
    # The server's own list shows, too, what no discovery does: wildcards, paths.
    for place, rights in (("default", {*everywhere}), (home, {*everywhere, *here})):
        (told, paths), (free, free_paths) = who.told(place), stranger.told(place)
        assert told - free == rights
        assert paths == free_paths
    return Checked(4 * len(asked) + 2 * len(named), len({*everywhere, *here}))


def known(who: Caller, namespace: str, rights: Collection[Right]) -> None:
    """Wait until the server reckons with all of its rights: roles and bindings come one by one."""
    eventually(lambda: who.told(namespace)[0] >= {*rights}, within=60, what=f"{who.user}'s rights")


def test_a_stranger_may_ask_about_itself(stranger):
    """What every account may do anyway, and is not counted below: to ask who it is and what it
    may; and to read the keys that our sidecars check tokens by."""
    rights, paths = stranger.told("default")
    assert {(right.resource, right.verb) for right in rights} == {
        ("selfsubjectaccessreviews", "create"),
        ("selfsubjectrulesreviews", "create"),
        ("selfsubjectreviews", "create"),
    }
    assert ("get", "/openid/v1/jwks") in paths


def test_the_controller_may_do_what_the_table_says(caller, stranger, controller):
    """The account of the deployed controller, over all that the API server has."""
    who = caller(account(controller, deployment.DEPLOYMENT))
    rights = granted("ClusterRole", CONTROLLER), granted("Role", CONTROLLER)
    print(check(who, stranger, controller, *rights))


def test_the_others_may_do_what_the_table_says(caller, stranger, roles, namespace):
    """With both components; in one namespace alone; users who edit and who view; training pods."""
    more = granted("ClusterRole", CONTROLLER, *COMPONENTS)
    given = {
        "components": (more, granted("Role", CONTROLLER)),
        "namespaced": (set(), granted("Role", NAMESPACED)),
        "edit": (set(), granted("ClusterRole `rover-kf-edit`", USERS)),
        "view": (set(), granted("ClusterRole `rover-kf-view`", USERS)),
    }
    roles.give({account(namespace, name): rights for name, rights in given.items()})
    # Sidecar and trainer run as the namespace's default account, which needs nothing.
    for name, (everywhere, here) in {**given, "default": (set(), set())}.items():
        assert name == "default" or everywhere or here
        who = caller(account(namespace, name))
        known(who, namespace, {*everywhere, *here})
        print(name, check(who, stranger, namespace, everywhere, here))


@pytest.fixture
def scene(cluster, namespace, caller, toolbox_image, tmp_path) -> Scene:
    """Two suspended jobs, and a pod that says something and goes on."""
    command = ["sh", "-c", "echo here; exec sleep 100000"]
    pod = objects.toolbox("crew-worker-0", namespace, command, image=toolbox_image)
    pod["metadata"]["labels"] = {
        names.JOB_NAME_LABEL: CREW,
        names.OPERATOR_NAME_LABEL: "pytorchjob-controller",
        names.REPLICA_TYPE_LABEL: "worker",
        names.REPLICA_INDEX_LABEL: "0",
    }
    amounts = {"cpu": "10m", "memory": "64Mi"}
    pod["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    suspended = objects.pytorchjob("idle", namespace, ["true"])
    suspended["spec"]["runPolicy"] = {"suspend": True}
    template = suspended["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    other = json.loads(json.dumps(suspended).replace('"pytorch"', '"tensorflow"'))
    other |= {"kind": "TFJob"}
    other["spec"]["tfReplicaSpecs"] = other["spec"].pop("pytorchReplicaSpecs")
    assert template["spec"]["containers"]
    holder = {"name": deeds.ACCOUNT, "namespace": namespace}
    issuer = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": holder}
    apply(cluster, [issuer, pod, suspended, other])
    eventually(
        lambda: objects.pod_ready(objects.get(cluster, namespace, "pod", "crew-worker-0")),
        within=120,
    )
    node = objects.get(cluster, namespace, "pod", "crew-worker-0")["spec"]["nodeName"]
    full = caller(account(namespace, "full"))
    return Scene(cluster, namespace, "", node, "crew-worker-0", "idle", tmp_path, full)


def needed(
    scene: Scene,
    roles: Roles,
    caller,
    *,
    everywhere: Collection[Right],
    here: Collection[Right],
    done: dict[Right, Deed],
) -> int:
    """That there is a deed for each right, that all can be done, and none without its right."""
    rights = {*everywhere, *here}
    assert rights == done.keys()
    order = list(done)
    without = {
        right: account(scene.namespace, f"without-{number}") for number, right in enumerate(order)
    }
    given = {user: ({*everywhere} - {r}, {*here} - {r}) for r, user in without.items()}
    given[scene.full.user] = ({*everywhere}, {*here})
    roles.give(given)
    for user, (wide, narrow) in given.items():
        known(caller(user), scene.namespace, {*wide, *narrow})
    for right, user in without.items():
        who = caller(user)
        assert not who.may(right, scene.namespace)
        told = deeds.refusals(done[right], who, scene)
        wanted = f'cannot {right.verb} resource "{right.resource}" in API group "{right.group}"'
        assert any(wanted in text for text in told), (right, told)
    refused = {right: deeds.refusals(deed, scene.full, scene) for right, deed in done.items()}
    assert not any(refused.values()), refused
    return len(order)


def test_the_controller_needs_each_right(scene, roles, caller):
    """Without any one of them its own code is refused what that one is for."""
    everywhere = granted("ClusterRole", CONTROLLER, *COMPONENTS) - BY_KOPF
    here = granted("Role", CONTROLLER)
    count = needed(scene, roles, caller, everywhere=everywhere, here=here, done=deeds.CONTROLLER)
    print(f"{count} rights, each removed and missed; {len(BY_KOPF)} more by kopf")


def test_the_controller_in_one_namespace_needs_each_right(scene, roles, caller, namespace):
    """The same for the rights of overlays/namespaced, with no other."""
    here = granted("Role", NAMESPACED)
    scene = dataclasses.replace(scene, watched=namespace)
    done = {right: deed for right, deed in deeds.CONTROLLER.items() if right in here}
    count = needed(scene, roles, caller, everywhere=(), here=here, done=done)
    print(f"{count} rights, each removed and missed")


def test_users_need_each_right(scene, roles, caller):
    """Client and steps of pipelines, with the rights of overlays/kubeflow; who views has fewer."""
    here = granted("ClusterRole `rover-kf-edit`", USERS)
    assert granted("ClusterRole `rover-kf-view`", USERS) < here
    count = needed(scene, roles, caller, everywhere=(), here=here, done=deeds.USERS)
    print(f"{count} rights, each removed and missed")


@pytest.fixture
def kopf(cluster, namespace, roles, tmp_path):
    """Run kopf as an account of the namespace; returns what it prints, line by line."""
    with contextlib.ExitStack() as stack:

        def start(name: str, rights: Collection[Right]) -> subprocess.Popen[str]:
            cluster.kubectl("-n", namespace, "create", "serviceaccount", name)
            roles.give({account(namespace, name): (rights, set())})
            token = cluster.kubectl("-n", namespace, "create", "token", name).strip()
            view = ("config", "view", "--raw", "--minify", "--flatten", "-o", "json")
            config = json.loads(cluster.kubectl(*view))
            config["users"][0]["user"] = {"token": token}
            (tmp_path / name).write_text(json.dumps(config))
            script = settings.REPOSITORY / "tests" / "cluster" / "scripts" / "nodes_watched.py"
            process = subprocess.Popen(
                [sys.executable, script],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "KUBECONFIG": str(tmp_path / name)},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def until(process, *wanted: str) -> str:
    """The first line that has one of the words."""
    seen = []
    for line in process.stdout:
        seen.append(line)
        if any(word in line for word in wanted):
            return line
    raise AssertionError("".join(seen))


def test_kopf_needs_to_list_and_watch_nodes(cluster, kopf, scene):
    """With both it tells of a change; without either it is refused; it asks for nothing else."""
    both = {Right("", "nodes", "list"), Right("", "nodes", "watch")}
    process = kopf("both", both)
    assert until(process, f"{scene.node} heard", "orbidden") == f"{scene.node} heard\n"
    cluster.kubectl("annotate", "node", scene.node, f"rover-kf.test/seen={scene.namespace}")
    try:
        assert until(process, f"{scene.node} heard", "orbidden") == f"{scene.node} heard\n"
    finally:
        cluster.kubectl("annotate", "node", scene.node, "rover-kf.test/seen-")
    for right in both:
        process = kopf(f"no-{right.verb}", both - {right})
        assert f"cannot {right.verb} resource" in until(process, "cannot")


def test_a_restricted_namespace_takes_our_pods_and_no_others(cluster, namespace):
    """Pod security is enforced there: a pod of an injected job whose own container keeps to the
    profile is taken, and refused if one of our containers asks for more. Jobs that train to their
    end there are test_end_to_end.py's."""
    job = inject(jobs.digits(namespace), settings=InjectionSettings("sidecar:1")).manifest
    spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    spec["containers"][0]["securityContext"] = spec["initContainers"][0]["securityContext"]
    metadata = {"name": "digits-worker-0", "namespace": namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    dry = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    taken = json.loads(cluster.kubectl(*dry, text=json.dumps(pod)))
    for container in spec["initContainers"]:
        kept = container["securityContext"]
        container["securityContext"] = {**kept, "allowPrivilegeEscalation": True}
        with pytest.raises(CommandFailed, match="violates PodSecurity"):
            cluster.kubectl(*dry, text=json.dumps(pod))
        container["securityContext"] = kept
    print(f"{len(taken['spec']['initContainers'])} containers of ours, each refused with more")
