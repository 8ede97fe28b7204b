# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""rover-kf train: what it would create, where, and what it refuses."""

from __future__ import annotations

import pytest
import yaml

from rover_kf import errors
from rover_kf.cli import exit_codes, main


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROVER_KF_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("ROVER_KF_ON", raising=False)
    (tmp_path / "fit.py").write_text("print('trained')\n")

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return run


def test_a_dry_run_prints_what_a_cluster_would_get(call):
    """ConfigMap and job, ready for kubectl; the script's own options stay the script's."""
    words = ("--image", "torch:1", "--replicas", "1:4", "--name", "fit", "--set", "hang.action=off")
    code, out, _ = call("train", *words, "--dry-run", "fit.py", "--replicas", "9", "-n", "x")
    assert code == 0
    assert "rover-kf patch FILE | kubectl apply" in out
    assert "has no owner" in out
    kept, job = yaml.safe_load_all(out)
    assert kept["data"] == {"fit.py": "print('trained')\n"}
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["volumes"][0]["configMap"]["name"] == kept["metadata"]["name"] == "fit"
    command = pod["containers"][0]["command"]
    assert command == ["torchrun", "fit.py", "--replicas", "9", "-n", "x"]
    assert job["metadata"]["annotations"]["rover-kf.io/hang.action"] == "off"
    assert job["spec"]["elasticPolicy"] == {"minReplicas": 1, "maxReplicas": 4}


def test_it_says_where_its_output_is(call, tmp_path):
    """At its begin and at its end, as a command that shows it; a plain script looks not hung."""
    (tmp_path / "fit.py").write_text("print('trained')\n")
    code, out, err = call("train", "--name", "fit", "-n", "team", "fit.py")
    assert code == 0, err
    first, *_, last = out.splitlines()
    assert first.endswith("created; what it prints: rover-kf logs -n team fit")
    assert last == "what it printed: rover-kf logs -n team fit"
    assert "steps not reported" in out
    assert "trained" in call("logs", "-n", "team", "fit")[1]


def test_without_an_image_it_is_a_job_of_this_machine(call, tmp_path):
    """The dry run names the script where it lies, and a report or a job is not made."""
    code, out, _ = call("train", "--dry-run", "--checkpoints", "kept", "fit.py")
    assert code == 0
    (job,) = yaml.safe_load_all(out)
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["torchrun", str(tmp_path / "fit.py")]
    path = job["metadata"]["annotations"]["rover-kf.io/checkpoint.path"]
    assert path == str(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_key_is_taken_as_the_documents_name_it(call):
    """docs/policy.md has keys with their prefix; so has a manifest from which they are copied."""
    words = ("--set", "rover-kf.io/checkpoint.every=20", "--checkpoints", "kept")
    words += ("--set", "rover-kf.io/checkpoint.path=/elsewhere")
    code, out, _ = call("train", *words, "--dry-run", "fit.py")
    assert code == 0
    (job,) = yaml.safe_load_all(out)
    stated = job["metadata"]["annotations"]
    assert stated["rover-kf.io/checkpoint.every"] == "20"
    assert stated["rover-kf.io/checkpoint.path"] == "/elsewhere"
    assert len(stated) == 2


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("--set", "checkpoint.keep-best=accuracy"), "accuracy:max:2"),
        (("--set", "checkpoint.evry=5"), "did you mean rover-kf.io/checkpoint.every?"),
        (("--image", "i", "--checkpoints", "s3://key:secret@models/x"), "without credentials"),
        (("--checkpoints", "s3://models/x"), "s3://…; allowed here: a folder"),
        (("--checkpoints", "file:///tmp/x"), "file://…; allowed here: a folder"),
        (("--checkpoints", "https://key:secret@models/x"), "https://…; allowed here: a folder"),
        (("--image", "i", "--checkpoints", "https://key:secret@models/x"), "go to https://…; all"),
        (("--image", "i", "--checkpoints", "claim:kept/runs"), "checkpoint.path=/checkpoints/FOLD"),
        (("--image", "i", "--checkpoints", "claim:"), "claim:NAME of a PersistentVolumeClaim"),
        (("--image", "torch:1", "--set", "checkpoint.path=/kept"), "a mount that holds /kept"),
        (("--memory", "1Gi", "--set", "checkpoint.arena=2Gi"), "the trainer's memory limit, 1Gi"),
    ],
)
def test_a_dry_run_refuses_what_a_run_would(call, words, refusal):
    """A manifest that is put into a repository is no place to find out later."""
    code, out, err = call("train", *words, "--dry-run", "fit.py")
    assert (code, out) == (exit_codes.REFUSED, "")
    assert refusal in err
    assert "secret@" not in err


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("--replicas", "4:1", "fit.py"), "replicas are '4:1'; allowed"),
        (("--set", "hang.action", "fit.py"), "--set 'hang.action'; allowed: KEY=VALUE"),
        (("missing.py",), "missing.py is no file"),
        (("--replica", "2", "fit.py"), "No such option"),
        (("--start", "3", "fit.py"), "3 replicas at first; allowed: 1 to 1"),
        (("--set", "hang.action=maybe", "fit.py"), "rover-kf.io/hang.action is 'maybe'"),
    ],
)
def test_bad_words_are_refused(call, words, refusal):
    """In one line, with exit code 2; nothing is created."""
    code, _, err = call("train", *words)
    assert code == exit_codes.REFUSED
    assert refusal in err
    assert call("list", "-o", "json")[1].strip() == "[]"


def test_every_exit_code_is_documented():
    """What errors end the command with stands in the table that docs/cli.md is made of."""
    every = [errors.RoverError]
    for kind in every:
        every.extend(kind.__subclasses__())
    assert {kind.exit_code for kind in every} <= set(exit_codes.MEANINGS)
