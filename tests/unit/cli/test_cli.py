# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: verbs, exit codes, refusals."""

from __future__ import annotations

import copy
import json
import pathlib
import signal
import subprocess
import sys

import pytest
import yaml
from local_jobs import FOREVER, job, replica

from rover_kf.api import names
from rover_kf.cli import main
from rover_kf.cluster.local import LocalCluster
from tests.support.waiting import eventually

ELASTIC = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}}


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("ROVER_KF_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "state"


@pytest.fixture
def call(state, capsys):  # noqa: ARG001 - the state folder is in the environment
    def run(*words):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return run


@pytest.fixture
def write(tmp_path):
    def file(manifest, name="job.yaml"):
        path = tmp_path / name
        path.write_text(yaml.safe_dump(manifest))
        return path

    return file


def training(tmp_path, **annotations):
    """A job that injection can rewrite; its script exists."""
    (tmp_path / "train.py").write_text("print('trained')")
    found = job("train", worker=replica("", command=["python", "train.py"]), **ELASTIC)
    memory = {"limits": {"memory": "1Gi"}}
    container = found["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["resources"] = memory
    found["metadata"]["annotations"] = {
        f"rover-kf.io/{key.replace('__', '.')}": value for key, value in annotations.items()
    }
    return found


def test_run_ends_with_the_job(call, write):
    """``run`` shows sizes and progress as plain lines and ends with 0."""
    code, out, _ = call("run", "--no-inject", write(job("fine", worker=replica("sleep 0.2"))))
    assert code == 0
    assert "recommend replicas: 1 replicas" in out
    assert "fine: Succeeded" in out
    assert "SuccessfulCreatePod: Created pod: fine-worker-0" in out


def test_run_of_a_failing_job_ends_with_1(call, write):
    """A failed job is an error with the verdict and exit code 1."""
    code, _, err = call(
        "run", "--no-inject", write(job("bad", worker=replica("exit 4", policy="Never")))
    )
    assert code == 1
    assert "PyTorchJob default/bad is Failed: " in err
    assert "exit code 4" in err


def test_a_name_is_never_overwritten(call, write):
    """Running a job again is refused with exit code 2 until the first is deleted."""
    file = write(job("once", worker=replica("exit 0")))
    assert call("run", "--no-inject", file)[0] == 0
    code, _, err = call("run", "--no-inject", file)
    assert code == 2
    assert "once exists" in err
    assert call("delete", "once")[0] == 0
    assert call("run", "--no-inject", file)[0] == 0


def test_verbs_read_what_a_run_left(call, write):
    """After a run list, status, logs and events show it from another command."""
    call("run", "--no-inject", write(job("left", worker=replica("echo one; echo two"))))
    assert "left" in call("list")[1]
    assert "left: Succeeded" in call("status", "left")[1]
    assert call("logs", "left")[1] == "one\ntwo\n"
    assert call("logs", "left", "left-worker-0", "--tail", "1")[1] == "two\n"
    assert "PyTorchJobSucceeded" in call("events", "left")[1]
    code, _, err = call("logs", "nobody")
    assert (code, "there is no PyTorchJob default/nobody" in err) == (1, True)


@pytest.mark.parametrize(("inside", "said"), [("file/x", "File exists"), ("", "Is a directory")])
def test_a_file_that_cannot_be_written_is_told(call, write, tmp_path, inside, said):
    """Below a plain file, a folder: a sentence, no traceback."""
    file, out = write(training(tmp_path)), tmp_path / inside
    (tmp_path / "file").touch()
    code, _, err = call("patch", file, "-o", out)
    assert (code, f"error: {out} cannot be written: " in err, said in err) == (2, True, True)


def test_patch_prints_yaml_that_patches_to_itself(call, write, tmp_path):
    """``patch`` is pure: YAML on stdout, a diff on demand, its own output unchanged."""
    file = write(training(tmp_path))
    code, out, _ = call("patch", file)
    assert code == 0
    patched = yaml.safe_load(out)
    assert names.INJECTED_ANNOTATION in patched["metadata"]["annotations"]
    again = tmp_path / "again.yaml"
    again.write_text(out)
    assert call("patch", again)[1] == out
    assert call("patch", again, "--diff")[1] == ""
    assert "+" in call("patch", file, "--diff")[1]
    assert call("patch", file, "-o", tmp_path / "out.yaml")[1] == ""
    assert yaml.safe_load((tmp_path / "out.yaml").read_text()) == patched


def test_recommend_says_sizes(call, write, tmp_path):
    """``recommend`` gives a table for people and JSON for programs."""
    file = write(training(tmp_path))
    assert "replicas" in call("recommend", file)[1]
    sizes = json.loads(call("recommend", file, "--json")[1])
    assert {"replicas", "memory"} <= {item["name"] for item in sizes["quantities"]}


def test_submit_is_for_clusters(call, write):
    """An embedded job would end with ``submit``: it is refused, and ``run`` is named."""
    code, _, err = call("submit", write(job("gone", worker=replica("exit 0"))))
    assert code == 2
    assert "rover-kf run" in err


def test_an_empty_history_is_shown_as_such(call):
    """``history list`` works before the first run; an unknown run is refused."""
    assert call("history", "list")[0] == 0
    code, _, err = call("history", "show", "abc")
    assert (code, "names 0 runs" in err) == (2, True)


def test_wrong_usage_ends_with_2(call):
    """click's own refusals have exit code 2 as well."""
    code, _, err = call("run")
    assert (code, "Missing argument" in err) == (2, True)


def _without_trainer(manifest):
    found = copy.deepcopy(manifest)
    pod = found["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["containers"][0]["name"] = "main"
    return found


def _min_above_max(manifest):
    return {
        **manifest,
        "spec": {**manifest["spec"], "elasticPolicy": {"minReplicas": 3, "maxReplicas": 1}},
    }


def _without_script(manifest):
    found = copy.deepcopy(manifest)
    pod = found["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["containers"][0]["command"] = ["python", "missing.py"]
    return found


def _annotated(key, value):
    def change(manifest):
        metadata = {**manifest["metadata"], "annotations": {f"rover-kf.io/{key}": value}}
        return {**manifest, "metadata": metadata}

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: {**m, "kind": "Deployment"}, ("kind", "'Deployment'", "PyTorchJob")),
        (_without_trainer, ("containers", "'main'", "pytorch")),
        (_min_above_max, ("minReplicas", "3", "maxReplicas")),
        (_annotated("checkpoint.evry", "5"), ("checkpoint.evry", "'5'", "checkpoint.every")),
        (_annotated("checkpoint.every", "0"), ("checkpoint.every", "'0'", "1 or more")),
        (_annotated("checkpoint.path", "/proc/x"), ("checkpoint.path", "'/proc/x'", "written")),
        (_annotated("checkpoint.arena", "64Gi"), ("checkpoint.arena", "64Gi", "memory limit")),
        (_without_script, ("command", "missing.py", "a script that exists")),
    ],
)
def test_bad_input_is_refused_before_anything_starts(  # noqa: PLR0917 - fixtures
    call, write, tmp_path, state, change, words
):
    """File, key, value and what is allowed are named; exit code 2; nothing was created."""
    file = write(change(training(tmp_path)))
    code, _, err = call("run", file)
    assert code == 2
    assert "Traceback" not in err
    for word in words:
        assert word in err
    with LocalCluster(state) as cluster:
        assert cluster.store.jobs() == ()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing_behind(state, write, number, code):
    """Ctrl-C drains: SIGTERM to the pods, no process, no memory, no job is left."""
    worker = replica(
        "echo $$; " + FOREVER,
        volumeMounts=[{"name": "m", "mountPath": "/m"}],
        pod={"volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]},
    )
    file = write(job("stopped", worker=worker))
    command = [sys.executable, "-m", "rover_kf.cli", "run", "--no-inject", file]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            reader = LocalCluster(state)

            def pid():
                jobs = reader.list_jobs()
                pods = reader.list_pods(jobs[0].key) if jobs else ()
                log = reader.read_log(jobs[0].key, pods[0].name, "pytorch") if pods else ""
                return (int(log.split()[0]), pods[0].uid) if "ready" in log else None

            found, uid = eventually(pid, within=60.0)
            process.send_signal(number)
            assert process.wait(60.0) == code
            assert b"draining" in process.stderr.read()
        finally:
            process.kill()
    assert not pathlib.Path(f"/proc/{found}").exists()
    assert not list(pathlib.Path("/dev/shm").glob(f"rkf-{uid[:8]}-*"))
    assert reader.store.jobs() == ()
