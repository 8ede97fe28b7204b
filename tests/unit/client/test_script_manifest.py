# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A script or a function as a job: what is made of it, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from rover_kf import errors
from rover_kf.client import RoverClient, script_files, script_manifest, settings
from rover_kf.client.script_manifest import Resources, TrainingSpec
from rover_kf.cluster.local import local_admission
from rover_kf.injection.inject import inject
from rover_kf.injection.settings import InjectionSettings


@pytest.fixture
def asked(tmp_path):
    script = tmp_path / "fit.py"
    script.write_text("print('trained')")
    return TrainingSpec(script, "fit-1", min_replicas=1, max_replicas=4, arguments=("--steps", "5"))


def _worker(job):
    return job["spec"]["pytorchReplicaSpecs"]["Worker"]


def _trainer(job):
    return _worker(job)["template"]["spec"]["containers"][0]


def test_an_embedded_job_runs_the_script_where_it_is(asked, tmp_path):
    """This machine accepts the job, with the bounds that were asked for."""
    job = script_manifest.make_embedded_job(dataclasses.replace(asked, checkpoints="kept", start=2))
    local_admission.validate(job, tmp_path)
    assert _trainer(job)["command"] == ["torchrun", str(asked.script), "--steps", "5"]
    assert _worker(job)["replicas"] == 2
    assert job["spec"]["elasticPolicy"] == {"minReplicas": 1, "maxReplicas": 4}
    path = job["metadata"]["annotations"]["rover-kf.io/checkpoint.path"]
    assert path.startswith("/")
    assert path.endswith("/kept")


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("../kept", "kept"),
        ("~/kept", "home/kept"),
        ("link/../kept", "far/kept"),
        ("./a b", "cwd/a b"),
    ],
)
def test_checkpoints_go_to_the_folder_that_is_named(asked, tmp_path, monkeypatch, named, meant):
    """As a shell and the file system would have it; a manifest has neither .. nor ~."""
    (tmp_path / "cwd").mkdir()
    (tmp_path / "far" / "below").mkdir(parents=True)
    (tmp_path / "cwd" / "link").symlink_to(tmp_path / "far" / "below")
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    job = script_manifest.make_embedded_job(dataclasses.replace(asked, checkpoints=named))
    path = job["metadata"]["annotations"]["rover-kf.io/checkpoint.path"]
    assert path == str(tmp_path / meant)


def test_throughput_decides_only_where_there_is_a_choice(asked):
    """A range is scaled by itself unless it is said otherwise; a number stays."""
    mode = "rover-kf.io/scaling.mode"
    job = script_manifest.make_embedded_job(asked)
    assert job["metadata"]["annotations"][mode] == "auto"
    fixed = script_manifest.make_embedded_job(
        dataclasses.replace(asked, min_replicas=2, max_replicas=2)
    )
    assert mode not in fixed["metadata"]["annotations"]
    told = dataclasses.replace(asked, policy={"scaling.mode": "off"})
    assert script_manifest.make_embedded_job(told)["metadata"]["annotations"][mode] == "off"


def test_a_job_of_a_cluster_takes_its_script_along(asked):
    """Script in a ConfigMap that the job owns, checkpoints on a claim, sizes as asked for."""
    whole = dataclasses.replace(
        asked,
        image="torch:1",
        namespace="team",
        checkpoints="claim:kept",
        resources=Resources.from_mapping({"cpu": 2, "memory": "4Gi", "nvidia.com/gpu": 1}),
        policy={"checkpoint.every": "50"},
    )
    job = script_manifest.make_cluster_job(whole)
    trainer = _trainer(job)
    assert trainer["command"][:2] == ["torchrun", "fit.py"]
    mounts = {mount["name"]: mount["mountPath"] for mount in trainer["volumeMounts"]}
    assert mounts == {"script": "/workspace", "checkpoints": "/checkpoints"}
    limits = {"memory": "4Gi", "nvidia.com/gpu": "1"}
    assert trainer["resources"] == {"requests": {"cpu": "2", **limits}, "limits": limits}
    kept = script_manifest.make_script_config_map(whole, "uid-1")
    assert kept["data"] == {"fit.py": "print('trained')"}
    (owner,) = kept["metadata"]["ownerReferences"]
    assert (owner["name"], owner["uid"]) == ("fit-1", "uid-1")
    done = inject(job, settings=InjectionSettings("sidecar:1"))
    assert done.warnings == ()
    environment = {
        item["name"]: item.get("value")
        for container in _worker(done.manifest)["template"]["spec"]["initContainers"]
        for item in container.get("env", ())
    }
    checkpoint = json.loads(environment["ROVER_POLICY"])["checkpoint"]
    assert (checkpoint["every"], checkpoint["path"]) == (50, "/checkpoints")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": ""}, "no image; allowed: --image"),
        ({"checkpoints": "here"}, "'here'; allowed: claim:NAME"),
        ({"start": 5}, "5 replicas at first; allowed: 1 to 4"),
    ],
)
def test_what_a_cluster_cannot_run_is_refused(asked, change, words):
    """The refusal says what is allowed."""
    with pytest.raises(errors.InputError, match=words):
        script_manifest.make_cluster_job(
            dataclasses.replace(asked, **{"image": "torch:1", **change})
        )


def test_scripts_that_cannot_go_along_are_refused(asked, tmp_path):
    """One that is not there, and one that no ConfigMap holds."""
    missing = dataclasses.replace(asked, script=tmp_path / "missing.py")
    with pytest.raises(errors.InputError, match=r"missing\.py cannot be read"):
        script_manifest.make_script_config_map(missing)
    with pytest.raises(errors.InputError, match=r"missing\.py is no file"):
        script_manifest.make_embedded_job(missing)
    asked.script.write_text("#" * (script_files.MAX_BYTES + 1))
    with pytest.raises(errors.InputError, match="at most 1000000, which a ConfigMap can hold"):
        script_manifest.make_script_config_map(asked)


def test_modules_beside_a_script_go_along(asked, tmp_path):
    """Those that it imports, and those that they do, as Python would find them; no others."""
    asked.script.write_text("import json, os.path\ndef main():\n    from steps import one\n")
    (tmp_path / "steps.py").write_text("import fit\nimport numbers_of.it\n")
    (tmp_path / "numbers_of.py").write_text("N = 3\n")
    (tmp_path / "other.py").write_text("")
    assert set(script_manifest.make_script_config_map(asked)["data"]) == {
        "fit.py",
        "steps.py",
        "numbers_of.py",
    }
    (tmp_path / "numbers_of.py").write_text("#" * script_files.MAX_BYTES)
    with pytest.raises(errors.InputError, match=r"fit\.py with steps\.py, numbers_of\.py has"):
        script_manifest.make_script_config_map(asked)
    (tmp_path / "numbers_of").mkdir()
    (tmp_path / "numbers_of" / "__init__.py").write_text("")
    with pytest.raises(errors.InputError, match=r"imports numbers_of, a folder beside it"):
        script_manifest.make_script_config_map(asked)


def test_a_claim_is_of_a_cluster(asked):
    """Without an image the job is of this machine, where nobody would look for a claim."""
    claimed = dataclasses.replace(asked, checkpoints="claim:kept")
    with pytest.raises(errors.InputError, match=r"'claim:kept', .* allowed here: a folder; .*--im"):
        script_manifest.make_embedded_job(claimed)


@pytest.mark.parametrize(
    ("text", "found"), [("4", (4, 4)), (3, (3, 3)), ("1:4", (1, 4)), ("2:2", (2, 2))]
)
def test_bounds_are_read(text, found):
    """One number, or fewest and most."""
    assert script_manifest.parse_replicas(text) == found


@pytest.mark.parametrize("text", ["", "0", "4:1", "1:2:3", "many", "-1", "1:", "0:2"])
def test_other_bounds_are_refused(text):
    """With what is allowed."""
    with pytest.raises(errors.InputError, match="allowed: a number such as 4"):
        script_manifest.parse_replicas(text)


def test_words_of_resources_are_known():
    """A word that nobody knows is refused, not dropped."""
    with pytest.raises(errors.InputError, match="has 'mem'; allowed: cpu, gpu, memory"):
        Resources.from_mapping({"mem": "4Gi"})


@pytest.mark.parametrize("stem", ["Train", "3d_net", "__main__", "x" * 90, "ünï"])
def test_names_are_what_kubernetes_takes(stem):
    """Letters, digits and hyphens; short enough for a pod's name to follow; never the same."""
    first, second = script_manifest.unique_name(stem), script_manifest.unique_name(stem)
    assert first != second
    assert first.replace("-", "").isalnum()
    assert first.isascii()
    assert first[0].isalpha()
    assert len(first) <= 55


def summed(parameters):
    """A function as a notebook has it."""
    import json  # noqa: PLC0415 - what it needs goes along with it

    print(json.dumps({"sum": sum(parameters["numbers"]), "who": parameters["who"]}))


def test_a_function_is_a_script_that_calls_it(tmp_path):
    """The text runs by itself and hands the parameters over as they were."""
    given = {"numbers": [1, 2.5], "who": 'a "b" ü'}
    path = tmp_path / "summed.py"
    path.write_text(script_files.render_script(summed, given))
    said = subprocess.check_output([sys.executable, "-S", path], text=True, timeout=60)
    assert json.loads(said) == {"sum": 3.5, "who": given["who"]}


def test_functions_that_cannot_go_along_are_refused():
    """Lambdas, what is no function, what leans on a function around it, what is no plain data."""
    outside = 3

    def leaning(parameters):
        return parameters + outside

    for given, words in (
        (lambda: None, "allowed: a function made by def"),
        (print, "allowed: a function made by def"),
        (leaning, "leaning uses outside"),
    ):
        with pytest.raises(errors.InputError, match=words):
            script_files.render_script(given)
    with pytest.raises(errors.InputError, match="parameters of summed are"):
        script_files.render_script(summed, {"who": object()})


def test_a_client_mixes_nothing_up(tmp_path):
    """A function has parameters, a script arguments; what is refused leaves nothing behind."""
    with RoverClient(config=settings.read({}, state=tmp_path / "state")) as rover:
        with pytest.raises(errors.InputError, match="a script is given arguments"):
            rover.train(tmp_path / "x.py", parameters={})
        with pytest.raises(errors.InputError, match=r"missing\.py is no file"):
            rover.train(tmp_path / "missing.py")
        assert rover.list() == ()
