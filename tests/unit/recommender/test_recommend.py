# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Recommendations from history, profile, manifest and nothing."""

from __future__ import annotations

import dataclasses

import pytest

from rover_kf import errors
from rover_kf.api.records import RunRecord
from rover_kf.api.samples import Throughput
from rover_kf.history.store import SqlHistory
from rover_kf.recommender import job_signature as reading
from rover_kf.recommender.constraints import Constraints
from rover_kf.recommender.profile import Profile
from rover_kf.recommender.recommend import combine_evidence, recommend

MIB, GIB, DAY = 1 << 20, 1 << 30, 86400.0


def manifest(*, resources=None, annotations=None, command=("python", "train.py"), workers=2):
    container = {"name": "pytorch", "image": "digits:1", "command": list(command)}
    if resources:
        container["resources"] = {"requests": resources}
    worker = {"replicas": workers, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "digits", "namespace": "team", "annotations": annotations or {}},
        "spec": {
            "elasticPolicy": {"minReplicas": 1, "maxReplicas": 8},
            "pytorchReplicaSpecs": {"Worker": worker},
        },
    }


FACTS = reading.from_manifest(manifest(resources={"cpu": "1500m", "memory": "4Gi"}))
PLAIN = reading.from_manifest(manifest())


def window(nodes, seconds, end):
    return Throughput(end - 60, end, nodes, nodes, 60, 0, seconds, 64.0)


def run(**changes):
    record = RunRecord(
        uid="u1",
        signature=FACTS.signature,
        started_at=0.0,
        updated_at=2 * DAY,
        outcome="succeeded",
        requested={"replicas": 2.0, "cpu": 1.5, "memory": 4.0 * GIB},
        peak={"memory": 1000.0 * MIB, "cpu": 1.2},
        windows=tuple(window(k, 0.1 + 1.0 / k, 100.0 * k) for k in (1, 2, 3)),
        snapshot_bytes=100 * MIB,
        save_seconds=0.05,
        restarts=1,
        replicated=True,
    )
    return dataclasses.replace(record, **changes)


def test_history_is_believed_first():
    """With a run of the same command and image, every quantity comes from what it measured."""
    found = combine_evidence(FACTS, [run()])
    bases = {item.name: item.basis for item in found.quantities}
    assert bases == {
        "replicas": "history",
        "processes": "manifest",
        "cpu": "history",
        "memory": "history",
        "arena": "history",
        "replica": "history",
        "storage_bandwidth": "formula",
        "checkpoint_every": "formula",
    }
    assert found.get("memory").target == 1200 * MIB
    assert found.get("cpu").target == pytest.approx(1.38)
    assert found.get("arena").target == 220 * MIB
    assert found.get("storage_bandwidth").target == pytest.approx(1.25 * 100 * MIB / 60)
    counts = {item.name: item.effective_samples for item in found.quantities}
    assert counts.pop("processes") == 0
    assert list(counts.values()) == pytest.approx([1.0] * len(counts))


def test_a_replica_has_its_line_and_its_room():
    """Sharded state takes a third slot, in the arena and as a line; DDP's none; before any run
    nobody knows, and the line says what it may come to."""
    same = combine_evidence(FACTS, [run()])
    assert (same.get("replica").target, same.get("replica").upper) == (0, 0)
    found = combine_evidence(FACTS, [run(replicated=False)])
    arena, replica = found.get("arena"), found.get("replica")
    assert (arena.target, arena.lower) == (330 * MIB, 300 * MIB)
    assert (replica.target, replica.lower, replica.basis) == (110 * MIB, 100 * MIB, "history")
    assert "3 slots" in arena.why
    assert "sharded" in replica.why
    for unknown in (combine_evidence(FACTS, []), combine_evidence(FACTS, [run(replicated=None)])):
        arena, replica = unknown.get("arena"), unknown.get("replica")
        assert (replica.target, replica.basis) == (0, "default")
        assert replica.upper == arena.target / 2
        assert "not known" in replica.why


def test_fewer_ranks_hold_more_of_sharded_state():
    """A run of eight had an eighth of the state in each rank: two hold half of it each, twelve are
    not counted on, and storage takes all of it either way. Of DDP's every rank has the whole."""
    eight = run(replicated=False, windows=(window(8, 0.3, 100.0),), snapshot_bytes=100 * MIB)
    for workers, share in ((2, 4), (8, 1), (12, 1)):
        facts = reading.from_manifest(manifest(workers=workers))
        found = combine_evidence(facts, [eight])
        assert found.get("arena").lower == 3 * share * 100 * MIB
        assert found.get("storage_bandwidth").target == pytest.approx(1.25 * 800 * MIB / 60)
        whole = combine_evidence(facts, [dataclasses.replace(eight, replicated=True)])
        assert whole.get("arena").lower == 2 * 100 * MIB
    untold = dataclasses.replace(eight, windows=(), requested={"replicas": 8.0})
    assert combine_evidence(FACTS, [untold]).get("arena").lower == 12 * 100 * MIB


def test_checkpoint_interval_is_young_and_daly():
    """sqrt(2 * 0.05 s * (2 days seen + 1 day prior) / 2 failures) at the run's step time."""
    every = combine_evidence(FACTS, [run()]).get("checkpoint_every")
    seconds = (2 * 0.05 * (3 * DAY / 2)) ** 0.5
    assert every.target == round(seconds / (0.1 + 1 / 3))
    assert "50.0 ms" in every.why


def test_replicas_by_the_same_model_as_scaling():
    """A job that profits is begun larger, at most twice what was seen; one that does not, small."""
    assert combine_evidence(FACTS, [run()]).get("replicas").target in (3, 4, 5, 6)
    flat = run(windows=tuple(window(k, 1.0, 100.0 * k) for k in (1, 2, 4)))
    found = combine_evidence(FACTS, [flat]).get("replicas")
    assert found.target == 1
    assert "measured" in found.why


def test_what_is_not_trained_takes_two_bytes():
    """LoRA on a large model, by the formula: no gradients, no moments, no copy in fp32."""
    limits = Constraints(accelerator_memory=80.0 * GIB)
    whole = recommend(manifest(), constraints=limits, parameters=7e9)
    some = recommend(manifest(), constraints=limits, parameters=7e9, trained=2e7)
    held = [one.get("accelerator_memory").lower for one in (whole, some)]
    saved = 20 * 7e9 - (2 * (7e9 - 2e7) + 20 * 2e7)  # with buckets: two replicas
    assert held[0] - held[1] == pytest.approx(1.08 * saved)
    assert "16 for each of 2e+07 that are trained" in some.get("accelerator_memory").why


def test_other_scripts_do_not_count():
    """A run of another command under another name says nothing."""
    other = dataclasses.replace(FACTS.signature, command="python other.py", name="other")
    found = combine_evidence(FACTS, [run(signature=other)])
    assert {item.basis for item in found.quantities} <= {"manifest", "formula", "default"}


def test_old_runs_count_less():
    """Four weeks make a quarter of a run."""
    found = combine_evidence(FACTS, [run()], now=2 * DAY + 28 * DAY)
    assert found.get("cpu").effective_samples == pytest.approx(0.25)


def test_run_killed_for_memory_raises_the_request():
    """A run that ran out of memory with 4 GiB asks for more than 4.8 GiB."""
    killed = run(peak={}, outcome="failed", verdict="OOMKilled")
    assert combine_evidence(FACTS, [killed]).get("memory").target > 4.8 * GIB


def test_a_raised_limit_is_where_the_next_run_begins():
    """What a run was raised to and went on with; killed there too, it is more than that."""
    raised = run(peak={}, memory_raised=6.0 * GIB)
    found = combine_evidence(FACTS, [raised]).get("memory")
    assert (found.target, found.basis) == (6.0 * GIB, "history")
    assert "killed with less" in found.why
    measured = run(uid="u2", memory_raised=0.0)
    assert combine_evidence(FACTS, [raised, measured]).get("memory").target == 6.0 * GIB
    failed = run(peak={}, memory_raised=6.0 * GIB, outcome="failed", verdict="out_of_memory")
    assert combine_evidence(FACTS, [failed]).get("memory").target > 7.2 * GIB


def test_profile_speaks_where_no_run_does():
    """Without history a short real run gives memory and CPU."""
    profile = Profile(seconds=10, exited=False, peak_memory=400 * MIB, cpu_seconds=15)
    found = combine_evidence(FACTS, [], profile)
    assert (found.get("memory").basis, found.get("memory").target) == ("profile", 500 * MIB)
    assert found.get("cpu").target == pytest.approx(1.72, abs=0.01)


def test_manifest_then_defaults():
    """With neither, the manifest's requests stand; without those, wide defaults that say so."""
    found = combine_evidence(FACTS, [])
    assert found.get("memory").basis == "manifest"
    assert found.get("cpu").target == 1.5
    assert found.get("arena").target == 2 * GIB
    assert found.get("replicas").target == 2
    bare = combine_evidence(PLAIN, [])
    assert bare.get("memory").basis == bare.get("cpu").basis == "default"
    assert bare.get("checkpoint_every").target == 50


def test_annotation_of_the_interval_is_kept_until_measured():
    """A stated checkpoint.every is the manifest's word, not a default."""
    stated = reading.from_manifest(manifest(annotations={"rover-kf.io/checkpoint.every": "7"}))
    every = combine_evidence(stated, []).get("checkpoint_every")
    assert (every.target, every.basis) == (7, "manifest")


def test_constraints_cut_and_say_so():
    """What may not be had is not recommended."""
    found = combine_evidence(FACTS, [run()], None, Constraints(max_replicas=2, max_memory=GIB))
    assert found.get("replicas").target <= 2
    assert found.get("memory").target == GIB
    assert "that may be had" in found.get("memory").why


def test_recommend_reads_manifest_and_history(tmp_path):
    """The whole way: a recorded run of this manifest changes the next recommendation."""
    given = manifest(resources={"memory": "4Gi"})
    with SqlHistory(f"sqlite:///{tmp_path}/h.db") as history:
        assert recommend(given, history).get("memory").basis == "manifest"
        history.upsert(run())
        assert recommend(given, history).get("memory").basis == "history"


def test_history_that_is_away_is_no_obstacle(tmp_path):
    """An unusable database: sizes from the manifest."""
    (tmp_path / "file").write_text("in the way")
    with SqlHistory(f"sqlite:///{tmp_path}/file/h.db") as history:
        assert recommend(manifest(), history).get("memory").basis == "default"


def test_manifest_that_is_none_is_refused():
    """A Deployment, a job without a trainer, a wrong quantity: refused by key and value."""
    with pytest.raises(errors.ManifestError, match="kind is 'Deployment'"):
        recommend({"kind": "Deployment", "metadata": {}, "spec": {}})
    broken = manifest(resources={"memory": "much"})
    with pytest.raises(errors.InputError, match="much"):
        recommend(broken)
    unnamed = manifest()
    worker = unnamed["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["template"]["spec"]["containers"][0]["name"] = "main"
    with pytest.raises(errors.InputError, match="pytorch"):
        recommend(unnamed)
    with pytest.raises(errors.InputError):
        recommend({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"})


CLAIM = {"name": "ckpt", "persistentVolumeClaim": {"claimName": "fast"}}


def _stored(claim="fast", namespace="team"):
    given = manifest(annotations={"rover-kf.io/checkpoint.path": "/ckpt/run"})
    given["metadata"]["namespace"] = namespace
    pod = given["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["volumes"] = [{**CLAIM, "persistentVolumeClaim": {"claimName": claim}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "ckpt", "mountPath": "/ckpt"}]
    return reading.from_manifest(given)


def test_what_storage_takes_is_known_of_runs_on_it():
    """Whatever script they ran; of another storage only runs alike tell; of none, nothing."""
    facts = _stored()
    assert len({_stored().storage, _stored("slow").storage, _stored(namespace="b").storage}) == 3
    other = dataclasses.replace(FACTS.signature, command="python other.py", name="other")
    same = run(uid="u2", signature=other, storage=facts.storage, storage_rate=200e6)
    found = combine_evidence(facts, [same]).get("storage_rate")
    assert (found.target, found.basis) == (200e6, "history")
    assert "this storage" in found.why
    elsewhere = run(storage="s3://bucket", storage_rate=50e6)
    assert combine_evidence(facts, [same, elsewhere]).get("storage_rate").target == 200e6
    alike = combine_evidence(facts, [elsewhere]).get("storage_rate")
    assert (alike.target, "runs alike" in alike.why) == (50e6, True)
    assert combine_evidence(facts, [run(storage=facts.storage)]).get("storage_rate") is None
    assert combine_evidence(PLAIN, [elsewhere]).get("storage_rate") is None
