# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""RoverPolicy from annotations."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from rover_kf import errors
from rover_kf.api import names, policy
from rover_kf.injection import sidecar_container
from rover_kf.injection.injection_plan import plan_replicas
from rover_kf.injection.policy.rover_policy import RoverPolicy
from rover_kf.injection.settings import InjectionSettings
from rover_kf.job_kinds.job_spec import JobSpec
from rover_kf.sidecar import settings as sidecar_settings
from tests.support.jobs.job_manifests import make_job
from tests.support.pods.sidecar_variables import ONE_POD

STATED = {
    "checkpoint.path": "/ckpt/run",
    "checkpoint.secret": "bucket-key",
    "checkpoint.bandwidth": "100Mi",
    "checkpoint.storage-bandwidth": "200Mi",
    "checkpoint.replica-bandwidth": "50Mi",
    "checkpoint.peer-copy": "on",
    "checkpoint.shards": "/shards",
    "checkpoint.every": "20",
    "checkpoint.keep": "1",
    "checkpoint.keep-every": "1000",
    "checkpoint.keep-best": "val/loss:min:2",
    "checkpoint.adopt-from": "team-a/train",
    "checkpoint.persist-seconds": "0",
    "checkpoint.persist-steps": "200",
    "checkpoint.verify-replicas-every": "4",
    "checkpoint.arena": "2Gi",
    "scaling.mode": "auto",
    "scaling.min": "2",
    "scaling.max": "8",
    "scaling.sizes": "8,2, 4",
    "scaling.ps-max": "4",
    "scaling.window": "2m",
    "scaling.cooldown": "10s",
    "scaling.value-of-time": "0",
    "scaling.deadline": "6h",
    "scaling.weight": "3",
    "memory.max": "64Gi",
    "cpu.max": "7500m",
    "failures.restarts": "0",
    "failures.restarts-by-kind": "disk_full:3,crashed:0",
    "failures.max-backoff": "2m",
    "failures.node-grace": "30s",
    "failures.node-avoid": "1h",
    "failures.suspend-after": "1h",
    "hang.action": "report",
    "hang.min-seconds": "10m",
    "hang.pause-min-seconds": "2h",
    "hang.factor": "2.5",
    "preflight.mode": "exclude",
    "preflight.timeout": "5s",
    "straggler.action": "replace",
    "straggler.min-seconds": "20m",
    "straggler.replacements": "3",
    "nodes.cordon": "on",
    "launch.lease": "2m",
    "launch.on-lease-expired": "delete",
    "tls.secret": "sidecars",
    "tls.authorities": "bundle",
}
"""Each key with a value that is not its default."""
PAGE = pathlib.Path(__file__).parents[4] / "docs" / "policy.md"


def read(*, defaults=None, **stated):
    annotations = {names.PREFIX + key.replace("__", "."): value for key, value in stated.items()}
    return RoverPolicy.from_annotations(annotations, defaults=defaults, source="job.yaml")


def test_defaults():
    """A job that says nothing gets the documented defaults."""
    found = read()
    assert (found.checkpoint.path, found.checkpoint.every, found.checkpoint.keep) == (None, 50, 3)
    assert (found.checkpoint.persist_seconds, found.checkpoint.arena) == (60.0, None)
    assert (found.scaling.mode, found.scaling.min, found.scaling.max) == ("recommend", None, None)
    assert (found.scaling.window, found.scaling.cooldown, found.scaling.sizes) == (60.0, 300.0, ())
    assert (found.memory.max, found.failures.restarts) == (None, 10)


def test_every_key_is_read():
    """Each annotation reaches its field with its unit."""
    assert sorted(STATED) == sorted(policy.policy_fields())
    found = RoverPolicy.from_annotations({names.PREFIX + k: v for k, v in STATED.items()})
    assert dataclasses.asdict(found.checkpoint) == {
        "path": "/ckpt/run",
        "secret": "bucket-key",
        "bandwidth": 100 << 20,
        "storage_bandwidth": 200 << 20,
        "replica_bandwidth": 50 << 20,
        "peer_copy": "on",
        "shards": "/shards",
        "every": 20,
        "keep": 1,
        "keep_every": 1000,
        "keep_best": "val/loss:min:2",
        "adopt_from": "team-a/train",
        "persist_seconds": 0.0,
        "persist_steps": 200,
        "verify_replicas_every": 4,
        "arena": 2 << 30,
    }
    assert dataclasses.asdict(found.scaling) == {
        "mode": "auto",
        "min": 2,
        "max": 8,
        "sizes": (2, 4, 8),
        "ps_max": 4,
        "window": 120.0,
        "cooldown": 10.0,
        "value_of_time": 0.0,
        "deadline": 21600.0,
        "weight": 3.0,
    }
    assert (found.memory.max, found.cpu.max) == (64 << 30, 7.5)
    assert found.failures.restarts == 0
    assert found.failures.restarts_by_kind == "disk_full:3,crashed:0"
    assert found.failures.max_backoff == 120
    assert found.failures.node_grace == 30.0
    assert dataclasses.asdict(found.hang) == {
        "action": "report",
        "min_seconds": 600.0,
        "pause_min_seconds": 7200.0,
        "factor": 2.5,
    }
    assert (found.launch.lease, found.launch.on_lease_expired) == (120.0, "delete")
    assert dataclasses.asdict(found.tls) == {"secret": "sidecars", "authorities": "bundle"}
    again = RoverPolicy.from_annotations(found.to_annotations())
    assert again == found


@pytest.mark.parametrize("key", sorted(policy.policy_fields()))
def test_one_definition_reaches_docs_and_sidecar(key):
    """A field alone makes the annotation, its line in the docs and the sidecar's value."""
    field = policy.policy_fields()[key]
    help_text = field.metadata["rule"].help
    assert f"| `{names.PREFIX}{key}` | {help_text} |" in PAGE.read_text()
    stated = {key: STATED[key], **({"tls.secret": "x"} if key == "tls.authorities" else {})}
    found = RoverPolicy.from_annotations({names.PREFIX + k: v for k, v in stated.items()})
    plan, *_ = plan_replicas(JobSpec.parse(make_job()), found, InjectionSettings("sidecar:1"))
    (variable,) = [
        item["value"]
        for item in sidecar_container.environment(plan)
        if item["name"] == names.ENV_POLICY
    ]
    told = sidecar_settings.read(ONE_POD | {names.ENV_POLICY: variable}).policy
    assert dataclasses.asdict(told) == dataclasses.asdict(found)
    section = getattr(told, key.split(".")[0])
    assert getattr(section, field.name) != field.default


def test_a_sidecar_without_the_variable_has_the_defaults():
    """They are stated once; a variable that states some values leaves the others."""
    assert sidecar_settings.read(ONE_POD).policy == policy.PolicySections()
    some = sidecar_settings.read(ONE_POD | {names.ENV_POLICY: '{"hang": {"factor": 3}}'}).policy
    assert some == policy.PolicySections(hang=policy.HangPolicy(factor=3.0))
    with pytest.raises(errors.InputError, match=r"ROVER_POLICY: .*hang\.factor is 0"):
        sidecar_settings.read(ONE_POD | {names.ENV_POLICY: '{"hang": {"factor": 0}}'})
    with pytest.raises(errors.InputError, match=r"ROVER_POLICY: PolicySections\.hang\.factor"):
        sidecar_settings.read(ONE_POD | {names.ENV_POLICY: '{"hang": {"factor": "x"}}'})


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("checkpoint.every", "0", "1 or more"),
        ("checkpoint.every", "often", "whole number"),
        ("checkpoint.path", "relative", "absolute path"),
        ("checkpoint.path", "/a//b", "absolute path"),
        ("checkpoint.path", "ftp://host/x", "s3, gs, az"),
        ("checkpoint.path", "s3://key:secret@bucket/x", "without credentials"),
        ("checkpoint.path", "s3://bucket/x?token=1", "without credentials"),
        ("checkpoint.path", "s3://bucket//x", "s3, gs, az"),
        ("checkpoint.path", "s3:///x", "s3, gs, az"),
        ("checkpoint.secret", "A_KEY=1", "name of a Secret"),
        ("checkpoint.bandwidth", "fast", "bytes a second"),
        ("checkpoint.bandwidth", "100m", "100Mi, 1 or more"),
        ("checkpoint.replica-bandwidth", "0.5", "1 or more"),
        ("tls.secret", "Not A Name", "of type kubernetes.io/tls"),
        ("tls.authorities", "-", "name of a ConfigMap"),
        ("checkpoint.replica-bandwidth", "-1", "0 is no cap"),
        ("checkpoint.peer-copy", "yes", "off or on"),
        ("checkpoint.shards", "s3://bucket/shards", "an absolute path on one volume"),
        ("checkpoint.keep", "0", "1 or more"),
        ("hang.action", "kill", "restart, report or off"),
        ("hang.min-seconds", "0", "above 0"),
        ("hang.factor", "0.5", "1 or more"),
        ("checkpoint.keep-every", "0", "1 or more"),
        ("checkpoint.keep-best", "accuracy", "accuracy:max:2"),
        ("checkpoint.adopt-from", "train", "namespace/name"),
        ("checkpoint.keep-best", "accuracy:most:2", "max or min"),
        ("checkpoint.keep-best", "accuracy:max:0", "how many"),
        ("checkpoint.persist-seconds", "-1", "0 or more"),
        ("checkpoint.verify-replicas-every", "-1", "0 compares nothing"),
        ("checkpoint.arena", "4Gb", "quantity"),
        ("checkpoint.arena", "1Ki", "1Mi or more"),
        ("scaling.mode", "on", "off, recommend or auto"),
        ("scaling.min", "0", "1 or more"),
        ("scaling.sizes", "1,x", "comma-separated"),
        ("scaling.window", "0", "above 0"),
        ("scaling.cooldown", "soon", "duration"),
        ("memory.max", "all", "quantity"),
        ("cpu.max", "0", "quantity of cores"),
        ("failures.restarts-by-kind", "disk:3", "kinds of failures"),
        ("failures.max-backoff", "-1", "0 or more"),
        ("failures.restarts", "-1", "0 or more"),
        ("failures.restarts", "2.5", "whole number"),
    ],
)
def test_a_wrong_value_is_refused_by_name(key, value, allowed):
    """The error names the file, the key, the value and what is allowed, and has exit code 2."""
    with pytest.raises(errors.PolicyError) as caught:
        RoverPolicy.from_annotations({names.PREFIX + key: value}, source="job.yaml")
    assert caught.value.key == names.PREFIX + key
    assert caught.value.exit_code == 2
    for part in ("job.yaml", names.PREFIX + key, allowed):
        assert part in str(caught.value)


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/x", "gs://bucket/x?token=secret"])
def test_a_key_in_a_path_is_not_shown(url):
    """Neither in the error nor, with it, in an answer to admission or in an Event."""
    with pytest.raises(errors.PolicyError) as caught:
        RoverPolicy.from_annotations({names.PREFIX + "checkpoint.path": url})
    assert "secret" not in str(caught.value)
    assert "://…" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("checkpoint.evry", "checkpoint.every"),
        ("checkpoints.path", "checkpoint.path"),
        ("scaling.maximum", "scaling.max"),
        ("failure.restarts", "failures.restarts"),
    ],
)
def test_an_unknown_key_gets_the_nearest_one(wrong, right):
    """A misspelt key is refused with the key that was probably meant."""
    with pytest.raises(errors.PolicyError, match=f"did you mean {names.PREFIX}{right}"):
        RoverPolicy.from_annotations({names.PREFIX + wrong: "1"})


def test_contradictions_are_refused():
    """min above max, and sizes outside of them, name both values and the file."""
    with pytest.raises(errors.PolicyError, match=r"job\.yaml.*scaling\.min is 4.*which is 2"):
        read(scaling__min="4", scaling__max="2")
    with pytest.raises(errors.PolicyError, match=r"scaling\.sizes is 9.*1 to 8"):
        read(scaling__sizes="1,9", scaling__max="8")
    with pytest.raises(errors.PolicyError, match=r"scaling\.min is 4"):
        policy.ScalingPolicy(min=4, max=2)


def test_a_value_that_is_no_text_is_refused():
    """An unquoted number of a YAML file is refused here, as the API server would refuse it."""
    with pytest.raises(errors.PolicyError, match="text in quotes"):
        read(checkpoint__every=20)


def test_defaults_fill_what_the_job_does_not_say():
    """Defaults apply below annotations, with or without prefix; a mistake names the defaults."""
    defaults = {"checkpoint.every": "7", names.PREFIX + "checkpoint.keep": "9"}
    found = read(defaults=defaults, checkpoint__keep="2")
    assert (found.checkpoint.every, found.checkpoint.keep) == (7, 2)
    with pytest.raises(errors.PolicyError, match=r"defaults: annotation checkpoint\.evry"):
        read(defaults={"checkpoint.evry": "1"})


def test_annotations_of_others_are_ignored():
    """Other prefixes, and our own annotations that are no policy, are not read."""
    stated = {"example.com/checkpoint.every": "x", names.STATUS_ANNOTATION: "{}"}
    assert RoverPolicy.from_annotations(stated) == RoverPolicy()


def test_a_policy_does_not_change():
    """The sections are frozen and take no unknown field."""
    found = read()
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.checkpoint.every = 3
    with pytest.raises(TypeError, match="evry"):
        policy.CheckpointPolicy(evry=3)
