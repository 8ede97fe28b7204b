# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a job states is bounded where it is read: a value out of bounds is that job's own error."""

from __future__ import annotations

from typing import Any

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import MAX_REPLICAS
from rover_kf.api.policy import policy_fields
from rover_kf.cluster.kubernetes import conversion
from rover_kf.injection.policy.rover_policy import RoverPolicy
from rover_kf.injection.settings import InjectionSettings
from rover_kf.reconcilers import policy_source
from rover_kf.webhook import admission
from tests.support.jobs.job_manifests import make_job

EXTREMES = [str(2**31), str(2**62), "-1", "1e309", "inf", "-inf", "nan", "9" * 5000, "1e300"]
NUMERIC = [
    key
    for key, field in policy_fields().items()
    if any(word in str(field.type) for word in ("int", "float"))
]
SETTINGS = InjectionSettings("sidecar:1", "rover-kf-system:controller")
GREATEST = 2**60


@pytest.mark.parametrize("key", NUMERIC)
def test_no_numeric_annotation_is_unbounded(key):
    """Each at the limits of machine numbers: rejected with what is allowed, or small enough that
    sums of it stay exact."""
    for text in EXTREMES:
        read = _read(key, text)
        if isinstance(read, errors.PolicyError):
            assert names.PREFIX + key in str(read)
            assert len(str(read)) < 1000
            continue
        for number in read if isinstance(read, tuple) else (read,):
            assert abs(number) <= GREATEST, (text, number)


def _read(key: str, text: str) -> Any:
    try:
        policy = RoverPolicy.from_annotations({names.PREFIX + key: text})
    except errors.PolicyError as refusal:
        return refusal
    section, _, field = key.partition(".")
    return getattr(getattr(policy, section), field.replace("-", "_"))


COUNTS = {
    "scaling.max": make_job(policy={"scaling.max": "20000000"}),
    "scaling.sizes": make_job(policy={"scaling.sizes": "1,2,2000000000"}),
    "elasticPolicy.maxReplicas": make_job(elastic=(1, 2**31 - 1)),
    "replicas": make_job(workers=2**31 - 1),
}


@pytest.mark.parametrize("what", COUNTS)
def test_the_controller_counts_no_further_than_the_bound(what):
    """Also of a job that no webhook has seen. bcea6b1 made a set of twenty million sizes at each
    look, and was killed for memory."""
    stored = COUNTS[what]
    stored = {**stored, "metadata": {**stored["metadata"], "uid": "u", "resourceVersion": "1"}}
    with pytest.raises(errors.InputError, match=str(MAX_REPLICAS)):
        policy_source.policy_from_job(conversion.parse_job(stored))


def _tfjob(**counts: int) -> dict[str, Any]:
    job = make_job(kind="TFJob", policy={"scaling.max": str(counts.pop("most", 1))})
    worker = job["spec"]["tfReplicaSpecs"]["Worker"]
    specs = {
        kind: {**worker, "replicas": counts.get(kind, 1)} for kind in ("Chief", "PS", "Worker")
    }
    return {**job, "spec": {"tfReplicaSpecs": specs, "enableDynamicWorker": True}}


@pytest.mark.parametrize(
    "job",
    [*COUNTS.values(), _tfjob(most=2_000_000_000), _tfjob(PS=2_000_000_000), _tfjob(Worker=10**9)],
    ids=[*COUNTS, "TFJob scaling.max", "TFJob PS", "TFJob workers"],
)
def test_the_webhook_makes_nothing_for_a_count_that_is_too_large(job):
    """A TFJob got an address for each pod that it might have: 228 MiB for a body of 796 bytes."""
    request = {"uid": "1", "operation": "CREATE", "namespace": "team", "object": job}
    reply = admission.review({"request": request}, settings=SETTINGS)["response"]
    assert not reply["allowed"]
    assert str(MAX_REPLICAS) in reply["status"]["message"]


def test_the_bound_itself_is_allowed():
    """Ten thousand workers, and as many sizes to choose from."""
    stored = make_job(policy={"scaling.max": str(MAX_REPLICAS)})
    stored = {**stored, "metadata": {**stored["metadata"], "uid": "u", "resourceVersion": "1"}}
    policy = policy_source.policy_from_job(conversion.parse_job(stored))
    assert policy.allowed()[-1] == MAX_REPLICAS
