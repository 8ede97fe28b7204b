# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever a job's owner writes into a manifest or an annotation: taken, or refused by our errors.

The webhook reads jobs of the whole cluster: one of them must not stop it for the others.
"""

from __future__ import annotations

import copy
import json
import random
import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey, ObservedJob
from rover_kf.api.policy import policy_fields
from rover_kf.client import manifests
from rover_kf.injection import command, quantities
from rover_kf.injection.inject import inject
from rover_kf.injection.limits import manifest_memory
from rover_kf.injection.limits.manifest_cpu import CPU
from rover_kf.injection.policy.rover_policy import RoverPolicy
from rover_kf.injection.settings import InjectionSettings
from rover_kf.reconcilers import status_annotation
from rover_kf.trainer.gc_pause import gc_paused
from rover_kf.webhook import admission
from tests.support.jobs.job_manifests import make_job
from tests.support.malformed_messages import (
    BUDGET,
    DEEP,
    NASTY,
    anything,
    as_bytes,
    damaged,
    leaves,
    plain,
    rubbish,
)

SETTINGS = InjectionSettings("image")
MOUNT = {"name": "data", "mountPath": "/checkpoints"}
WHOLE = make_job(
    workers=2,
    masters=1,
    mount=MOUNT,
    elastic=(1, 4),
    policy={"checkpoint.path": "/checkpoints/x", "memory.max": "4Gi", "scaling.mode": "auto"},
)
INJECTED = inject(WHOLE, settings=SETTINGS).manifest
PLACES = (WHOLE, INJECTED)
COUNT = 6 * BUDGET.max_examples


def places(value, path=()):
    """Every place of a manifest."""
    yield path
    listed = dict(enumerate(value)) if isinstance(value, list) else value
    for key, item in listed.items() if isinstance(listed, dict) else ():
        yield from places(item, (*path, key))


def put(value, path, new):
    """A copy with something else at a place; a key that has no place stays away."""
    if not path:
        return new
    made = copy.copy(value)
    made[path[0]] = put(value[path[0]], path[1:], new)
    return made


SPOTS = [(whole, path) for whole in PLACES for path in places(whole)]
others = st.sampled_from(SPOTS).flatmap(
    lambda spot: (leaves | anything).map(lambda new: put(spot[0], spot[1], new))
)
"""A job of which one part is anything."""


def test_a_manifest_with_a_strange_part_is_injected_or_refused():
    """Each part of a whole job, injected or not, replaced by anything."""
    counts = {"injected": 0, "refused": 0}

    @settings(BUDGET, max_examples=COUNT)
    @given(others)
    def check(job):
        try:
            done = inject(job, settings=SETTINGS)
        except errors.InputError:
            counts["refused"] += 1
            return
        counts["injected"] += 1
        json.dumps(done.manifest)

    check()
    assert all(counts.values())
    print(f"manifests ({len(SPOTS)} places): {counts}")


def is_refused(job):
    """Whether it is, by an error that says what to do; anything else is a failure."""
    try:
        inject(job, settings=SETTINGS)
    except errors.InputError:
        return True
    return False


def test_every_place_may_hold_every_nasty_value():
    """Not by chance: each place with a few of the values that a mistake was once made with."""
    chance, refused = random.Random(1 if BUDGET.derandomize else None), 0
    count = min(max(4, BUDGET.max_examples // 15), len(NASTY))
    for whole, path in SPOTS:
        for value in chance.sample(NASTY, count):
            refused += is_refused(put(whole, path, value))
    assert refused > len(SPOTS)
    print(f"{len(SPOTS)} places, {refused} of {count * len(SPOTS)} manifests refused")


@pytest.mark.parametrize("value", ["²", "9" * 5000, "٣", "-1", "0", "auto", 0, True, [], None])
def test_processes_that_are_no_number_are_one(value):
    """Those of a pod that runs plain python; what is no count for Kubernetes is none for us."""
    assert command.processes_of(value) == 1


@settings(BUDGET, max_examples=COUNT)
@given(
    others | anything,
    others | anything,
    st.sampled_from(["CREATE", "UPDATE", "DELETE", 7]),
    st.sampled_from([{}, {"fieldManager": "kubectl-client-side-apply"}, 3]),
)
def test_any_review_is_answered(job, old, operation, options):
    """Allowed or refused, under its uid; a request that is none is a ProtocolError."""
    request = {"uid": "1", "object": job, "oldObject": old, "operation": operation}
    try:
        answer = admission.review({"request": request | {"options": options}}, settings=SETTINGS)
    except errors.ProtocolError:
        return
    assert answer["response"]["uid"] == "1"
    assert isinstance(answer["response"]["allowed"], bool)
    json.dumps(answer)


@BUDGET
@given(anything)
def test_what_is_no_review_is_a_message_error(review):
    """Anything that is JSON."""
    with pytest.raises(errors.ProtocolError):
        admission.review(review, settings=SETTINGS)


def test_any_annotation_is_read_or_refused():
    """Every key of the policy, with any text and with what is no text."""
    counts = {"read": 0, "refused": 0}
    known = sorted(policy_fields())
    texts = st.sampled_from(
        ["1", "0", "-1", "1e9", "1e999999", "1e-999999999", "5m", "9" * 500 + "h", "4Gi", "auto",
         "a:max:2", "/x", "/x/../y", "s3://b/c", "1,2,3", "nan", "inf", "\ud800", "\u0661", " 1 "]
    )  # fmt: skip

    @settings(BUDGET, max_examples=COUNT)
    @given(
        st.dictionaries(st.sampled_from(known), texts | st.text(max_size=12) | leaves, max_size=3)
    )
    def check(stated):
        annotations = {names.PREFIX + key: value for key, value in stated.items()}
        try:
            found = RoverPolicy.from_annotations(annotations)
        except errors.PolicyError:
            counts["refused"] += 1
            return
        counts["read"] += 1
        assert RoverPolicy.from_annotations(found.to_annotations()) == found

    check()
    assert all(counts.values())
    print(f"annotations of {len(known)} keys: {counts}")


@BUDGET
@given(
    st.from_regex(
        r"\A[+-]?[0-9]{0,30}\.?[0-9]{0,30}([eE][+-]?[0-9]{1,12}|[KMGTPE]i|[numkMGTPE]?)\Z"
    )
    | st.text(max_size=8)
    | leaves
)
def test_a_quantity_takes_no_longer_than_its_text(value):
    """An exponent must not become as many digits."""
    # One search for garbage among all that other tests have left may take as long.
    with gc_paused():
        begun = time.process_time()
        for read in (quantities.parse_bytes, quantities.parse_seconds):
            try:
                found = read(value)
            except ValueError:
                continue
            assert abs(found) <= 2**63
            quantities.format_bytes(int(found))
        assert time.process_time() - begun < 0.5


@BUDGET
@given(
    rubbish.map(lambda data: data.decode("latin-1")) | damaged(plain(status_annotation.JobStatus))
)
def test_what_stands_in_our_annotations_is_read_or_begun_anew(text):
    """Who may patch the job may write them."""
    text = text if isinstance(text, str) else as_bytes(text).decode("latin-1")
    ours = (
        names.STATUS_ANNOTATION,
        names.MEMORY_RAISED_ANNOTATION,
        names.CPU_RAISED_ANNOTATION,
        names.ORIGINAL_COMMAND_ANNOTATION,
    )
    job = copy.deepcopy(INJECTED)
    job["metadata"]["annotations"] = dict.fromkeys(ours, text)
    seen = ObservedJob(JobKey("team", "digits"), "uid", "1", job, {"worker": 2}, "Running")
    status_annotation.write(status_annotation.read(seen))
    manifest_memory.raised(job)
    CPU.raised(job)
    command.recorded(job)
    inject(job, settings=SETTINGS)


FILES = [
    "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "!!python/object/apply:os.system ['true']\n",
    "a: !!binary x\n",
    "\x00\n",
    "a: b: c\n",
    "- " * 20_000 + "x\n",
    "{" * 20_000 + "\n",
    "a: 0x" + "f" * 5000 + "\n",
    "a: " + "9" * 5000 + "\n",
    "2001-99-99\n",
    "? [a]\n: b\n",
    "kind: PyTorchJob\n---\nkind: PyTorchJob\n",
    DEEP.decode() + "\n",
]


@BUDGET
@given(st.sampled_from(FILES) | st.text(max_size=40).map(lambda text: text + "\n"))
def test_a_file_that_is_no_manifest_is_refused(text):
    """YAML makes objects and loops where it is let; ours makes neither."""
    with pytest.raises(errors.InputError):
        manifests.load(text)


def test_references_do_not_multiply():
    """A few lines of YAML that stand for 10^9 values cost what the lines cost."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    begun = time.process_time()
    with pytest.raises(errors.InputError) as refused:
        manifests.load("kind: PyTorchJob\napiVersion: kubeflow.org/v1\n" + "\n".join(lines) + "\n")
    assert len(str(refused.value)) < 10_000
    job = yaml.safe_load("\n".join(lines))
    with pytest.raises(errors.ManifestError) as strange:
        inject({**WHOLE, "spec": {**WHOLE["spec"], "pytorchReplicaSpecs": job}}, settings=SETTINGS)
    assert len(str(strange.value)) < 10_000
    assert time.process_time() - begun < 5
