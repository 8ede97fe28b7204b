# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The pipeline components, run by kfp on this machine against the embedded cluster."""

# No postponed annotations: kfp reads the types of a pipeline themselves.
import contextlib
import json
import pathlib
import subprocess
import sys
import warnings

import pytest
import yaml

from tests.support.waiting import eventually

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kfp's own, on import
    from kfp import compiler, dsl, local
    from kfp.components import load_component_from_text

    from components import compile as compiling
    from components import step_command
    from components.cleanup_job.component import cleanup_job
    from components.elastic_component import to_pytorchjob
    from components.export_checkpoint.component import export_checkpoint
    from components.launch_training_job.component import launch_training_job
    from components.legacy_component_yaml import to_legacy_yaml
    from components.patch_manifest.component import patch_manifest
    from components.pipelines.train import train
    from components.profile_training.component import profile_training
    from components.recommend_resources.component import recommend_resources
    from components.training_report.component import training_report
    from components.vary_manifest.component import vary_manifest
    from components.watch_autoscaling.component import watch_autoscaling

from rover_kf import errors
from rover_kf.api import names
from rover_kf.checkpoint_tools.export import export_model
from rover_kf.client import RoverClient, manifests
from rover_kf.job_kinds.pytorchjob.kind import PYTORCHJOB
from rover_kf.pipeline_steps import launch_options

pytestmark = pytest.mark.filterwarnings("ignore")  # kfp.local warns of what it does not emulate

COMPONENTS = sorted(path.parent for path in compiling.targets() if path.parent.name != "pipelines")
LARGEST = 64 << 10
"""Bytes of source in a compiled component: what the API server takes of a container's words."""

SCRIPT = """\
import torch
import rover_kf

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters())
checkpointer = rover_kf.Checkpointer()
start = checkpointer.restore({"model": model, "optimizer": optimizer})
for step in range(start + 1, 41):
    loss = model(torch.rand(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    checkpointer.step(step, {"model": model, "optimizer": optimizer}, samples=4, total_steps=40)
"""


def start(folder: pathlib.Path) -> None:
    """Have kfp run components here, and keep what they give below the folder."""
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(folder / "outputs"),
        workspace_root=str(folder / "workspace"),
        raise_on_error=True,
    )


def text_of(script: pathlib.Path, **annotations: str) -> str:
    container = {
        "name": "pytorch",
        "image": "any",
        "command": ["python", str(script)],
        "resources": {"limits": {"memory": "512Mi", "cpu": "1"}},
    }
    worker = {
        "replicas": 1,
        "restartPolicy": "ExitCode",
        "template": {"spec": {"containers": [container]}},
    }
    keyed = {f"{names.PREFIX}{key}": value for key, value in annotations.items()}
    return yaml.safe_dump(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {
                "name": "step",
                "labels": {names.INJECT_LABEL: "true"},
                "annotations": keyed,
            },
            "spec": {
                "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2},
                "pytorchReplicaSpecs": {"Worker": worker},
            },
        }
    )


@pytest.fixture
def manifest(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('a step of a pipeline trained')\n")
    return text_of(script)


@dsl.pipeline(name="everything")
def everything(manifest: str, checkpoints: str, state: str, run: str) -> None:
    """All components, one after another."""
    there = {"cluster": "embedded", "state_dir": state}
    clean = cleanup_job(run=run, finished=True, **there)
    with dsl.ExitHandler(clean):
        recommended = recommend_resources(manifest=manifest, **there)
        profiled = profile_training(manifest=manifest, steps=3, **there)
        profiled.after(recommended)
        sizes = profiled.outputs["Output"]
        patched = patch_manifest(manifest=manifest, recommendation=sizes, cluster="embedded")
        launched = launch_training_job(
            manifest=patched.output, run=run, timeout_seconds=240.0, **there
        )
        job = launched.outputs["Output"]
        watched = watch_autoscaling(manifest=patched.output, run=run, **there).after(launched)
        export_checkpoint(path=checkpoints, job=job).after(watched)
        training_report(job=watched.outputs["Output"], **there)


class Run:
    """What a run of the pipeline has left."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def file(self, task: str, name: str) -> pathlib.Path:
        (found,) = (self.folder / "outputs").glob(f"*/{task}/{name}")
        return found

    def metadata(self, task: str) -> dict:
        return json.loads(self.file(task, "executor_output.json").read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The pipeline's run, once for all tests that look at a part of it."""
    folder = tmp_path_factory.mktemp("run")
    start(folder)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    policy = {"checkpoint.path": str(folder / "checkpoints"), "checkpoint.every": "10"}
    text = text_of(script, **policy, **{"checkpoint.persist-seconds": "0"})
    everything(
        manifest=text,
        checkpoints=str(folder / "checkpoints"),
        state=str(folder / "state"),
        run="run-7",
    )
    return Run(folder)


@pytest.mark.parametrize("path", sorted(compiling.targets()), ids=lambda path: path.stem)
def test_compiled_files_are_what_compiling_gives(path, tmp_path):
    """Each compiled file is up to date, byte by byte but for kfp's own version; what it embeds is
    small. ``python -m components.compile`` writes them."""
    again = tmp_path / "again.yaml"
    compiler.Compiler().compile(compiling.targets()[path], str(again))
    assert _versionless(path) == _versionless(again)
    for executor in _compiled(path)["deploymentSpec"]["executors"].values():
        container = executor["container"]
        assert sum(map(len, [*container["command"], *container["args"]])) < LARGEST
        assert "pip install" not in str(container["command"]), "no package index at run time"


def _versionless(path):
    return [line for line in path.read_text().splitlines() if not line.startswith("sdkVersion:")]


def _compiled(path):
    return next(iter(yaml.safe_load_all(path.read_text())))


@pytest.mark.parametrize("home", COMPONENTS, ids=lambda path: path.name)
def test_a_component_is_described(home):
    """Each component has metadata and a page that names all its inputs and outputs."""
    metadata = yaml.safe_load((home / "metadata.yaml").read_text())
    assert metadata["name"] == home.name
    assert metadata["stability"] in ("experimental", "alpha", "beta", "stable")
    page = (home / "README.md").read_text()
    interface = _compiled(home / "component.yaml")["root"]
    for part in ("inputDefinitions", "outputDefinitions"):
        for kind in interface.get(part, {}).values():
            for name in kind:
                assert f"`{name}`" in page


@pytest.mark.torch
def test_sizes_are_said_and_shown(run):
    """recommend_resources and profile_training give sizes as JSON and as a table; what was tried
    says so."""
    for task, name, basis in (
        ("recommend-resources", "sizes", "manifest"),
        ("profile-training", "profile", "profile"),
    ):
        sizes = json.loads(run.file(task, name).read_text())
        found = {item["name"]: item["basis"] for item in sizes["quantities"]}
        assert {"replicas", "memory"} <= set(found)
        assert basis in found.values(), found
        assert "| replicas |" in run.file(task, "summary").read_text()
    measured = run.metadata("profile-training")["artifacts"]["metrics"]["artifacts"][0]
    assert measured["metadata"]["memory"] > 1 << 20


@pytest.mark.torch
def test_the_job_was_launched_and_told_of(run):
    """The job is named by the run; the launching step gives its numbers, the report tells of it."""
    launched = run.metadata("launch-training-job")
    name = launched["parameterValues"]["Output"]
    assert name.startswith("step-")
    assert len(name) == len("step-") + 8
    numbers = launched["artifacts"]["metrics"]["artifacts"][0]["metadata"]
    assert (numbers["steps"], numbers["restarts"]) == (40, 0)
    assert "<html" in run.file("training-report", "report").read_text()
    assert f"default/{name}" in run.file("training-report", "summary").read_text().replace("\\", "")
    told = run.metadata("training-report")
    assert told["parameterValues"]["Output"] == "succeeded"
    assert told["artifacts"]["metrics"]["artifacts"][0]["metadata"]["steps"] == 40


@pytest.mark.torch
def test_its_size_was_followed(run):
    """watch_autoscaling finds the job by run and manifest, as the launching step named it."""
    numbers = run.metadata("watch-autoscaling")["artifacts"]["metrics"]["artifacts"][0]["metadata"]
    assert (numbers["replicas_fewest"], numbers["changes"]) == (1, 0)
    assert "1 to 1 Worker replicas" in run.file("watch-autoscaling", "summary").read_text()


@pytest.mark.torch
def test_its_checkpoint_became_a_model(run):
    """export_checkpoint writes the last step as one file of tensors, and says what it is."""
    told = run.metadata("export-checkpoint")
    assert told["parameterValues"]["Output"] == 40
    metadata = told["artifacts"]["model"]["artifacts"][0]["metadata"]
    assert {"step": 40, "format": "safetensors", "framework": "pytorch"}.items() <= metadata.items()
    from safetensors.torch import load_file  # noqa: PLC0415 - takes torch

    assert load_file(run.file("export-checkpoint", "model"))["model.weight"].shape == (8, 8)


@pytest.mark.torch
def test_the_exit_handler_cleaned_up(run):
    """cleanup_job, which runs last, deletes the run's jobs; the record of the run stays."""
    name = run.metadata("launch-training-job")["parameterValues"]["Output"]
    assert run.metadata("cleanup-job")["parameterValues"]["Output"] == name
    with RoverClient.connect("embedded", state=str(run.folder / "state")) as rover:
        assert rover.list() == ()
        assert rover.record(name).outcome == "succeeded"


@dsl.component(base_image="python", install_kfp_package=False)
def fails():
    """A step of the run that fails."""
    raise SystemExit(3)


@dsl.pipeline(name="broken")
def broken(state: str, run: str) -> None:
    """A run that fails while a job that it has launched goes on."""
    clean = cleanup_job(run=run, cluster="embedded", state_dir=state)
    with dsl.ExitHandler(clean):
        fails()


@pytest.mark.timeout(600)
def test_the_exit_handler_ends_a_job_that_runs(tmp_path):
    """Of a run that fails, from another process than the one that waits for the job; on_stop,
    which is keep, is not the run's end. A job of another run is left."""
    start(tmp_path)
    state = tmp_path / "state"
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
        "time.sleep(600)\n"
    )
    with _step(tmp_path, script, "run-9") as ours, _step(tmp_path, script, "run-8") as other:
        places = (ours[1], other[1])
        pids = [eventually(lambda path=path: _pid(path), within=240) for path in places]
        with pytest.raises(RuntimeError, match="fail"):
            broken(state=str(state), run="run-9")
        eventually(lambda: not pathlib.Path(f"/proc/{pids[0]}").exists(), within=120)
        assert ours[0].wait(120) != 0
        assert "was deleted while it was waited for" in ours[2].read_text()
        assert pathlib.Path(f"/proc/{pids[1]}").exists()
        with RoverClient.connect("embedded", state=str(state)) as rover:
            (left,) = rover.list()
        assert left.annotations[names.LAUNCH_RUN_ANNOTATION] == "run-8"
    (told,) = (tmp_path / "outputs").glob("*/cleanup-job/executor_output.json")
    assert json.loads(told.read_text())["parameterValues"]["Output"].startswith("step-")


def _pid(path):
    return path.exists() and path.read_text()


@contextlib.contextmanager
def _step(folder, script, run):
    """A launching step as a process of its own, the file its job puts its process id in, its log;
    killed in the end if it is still there."""
    place, log = folder / f"{run}.pid", folder / f"{run}.log"
    text = yaml.safe_load(text_of(script))
    (container,) = text["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["command"] = ["python", str(script), str(place)]
    given = {"manifest": yaml.safe_dump(text), "run": run, "on_stop": "keep", "cluster": "embedded"}
    given |= {"state_dir": str(folder / "state")}
    given |= {name: str(folder / run / name) for name in ("Output", "metrics")}
    pairs = [word for name, value in given.items() for word in (f"--{name}", value)]
    words = [sys.executable, "-m", "components.step_command", "launch_training_job", *pairs]
    with log.open("w") as out, subprocess.Popen(words, stdout=out, stderr=out) as process:
        try:
            yield process, place, log
        finally:
            process.terminate()


def test_patch_keeps_whole_numbers_whole(manifest):
    """Manifests travel as texts, so replicas stay whole numbers; learned ones are taken over."""
    size = {
        "name": "replicas",
        "target": 2.0,
        "lower": 1.0,
        "upper": 2.0,
        "unit": "replicas",
        "basis": "history",
        "effective_samples": 3.0,
        "why": "because",
    }
    learned = json.dumps({"job": "step", "quantities": [size]})
    text = patch_manifest.python_func(manifest, learned, "embedded")
    patched = yaml.safe_load(text)
    assert names.INJECTED_ANNOTATION in patched["metadata"]["annotations"]
    replicas = patched["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]
    assert (replicas, type(replicas)) == (2, int)


def test_a_bad_format_is_refused(tmp_path):
    """What cannot be exported is said with what can."""
    with pytest.raises(errors.InputError, match="allowed: safetensors, torch, dcp, folder"):
        export_model(str(tmp_path), tmp_path / "model", form="onnx")


def test_a_bad_manifest_fails_the_step(tmp_path):
    """What cannot be used ends the step with an error, and the pipeline with its exit handler."""
    wrong = "kind: Deployment\nmetadata: {name: a}\n"
    with pytest.raises(errors.ManifestError, match="PyTorchJob or TFJob"):
        recommend_resources.python_func(wrong, None, None, "embedded", str(tmp_path))
    handled = train.pipeline_spec.root.dag.tasks["cleanup-job"]
    assert handled.trigger_policy.strategy == handled.trigger_policy.ALL_UPSTREAM_TASKS_COMPLETED


def test_a_sweep_gives_each_trial_its_job(manifest):
    """Arguments come last, as a shell splits them; each set makes another job of the same run."""
    texts = [vary_manifest.python_func(manifest, one) for one in ("--lr 0.1", "--name 'a b'")]
    found = [manifests.load(text).job for text in texts]
    words = [PYTORCHJOB.trainer(PYTORCHJOB.replicas(job)[0])["command"][2:] for job in found]
    assert words == [["--lr", "0.1"], ["--name", "a b"]]
    assert len({launch_options.make_job_name(job, "run-1") for job in found}) == 2
    with pytest.raises(errors.InputError, match="vary it before it is patched"):
        vary_manifest.python_func(patch_manifest.python_func(manifest, "", "embedded"), "--lr 1")
    with pytest.raises(errors.InputError, match="No closing quotation"):
        vary_manifest.python_func(manifest, "--name 'a")


@pytest.mark.parametrize("whole", ["python train.py", 'exec python train.py "$@"'])
def test_arguments_that_a_shell_would_not_pass_on_are_refused(manifest, whole):
    """What follows a line of a shell's are its own arguments: the trials would all be the same."""
    job = yaml.safe_load(manifest)
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container.update(command=["/bin/bash", "-ec"], args=[whole])
    if "$@" in whole:
        container["args"].append("bash")
        assert "--lr" in vary_manifest.python_func(yaml.safe_dump(job), "--lr 0.1")
        return
    with pytest.raises(errors.InputError, match="write the command as a list"):
        vary_manifest.python_func(yaml.safe_dump(job), "--lr 0.1")


@pytest.mark.parametrize("home", COMPONENTS, ids=lambda path: path.name)
def test_palettes_get_the_older_format(home):
    """palette.yaml is up to date, kfp loads it, every default is a text, and its command gives each
    input and each output of the component."""
    text = (home / "palette.yaml").read_text()
    component = compiling.components()[home]
    assert text == to_legacy_yaml(component)
    loaded = load_component_from_text(text)
    inputs = set(component.component_spec.inputs) - {"task_config"}
    assert set(loaded.component_spec.inputs) == inputs
    outputs = set(component.component_spec.outputs)
    assert set(loaded.component_spec.outputs) == {name.lower() for name in outputs}
    described = yaml.safe_load(text)
    assert all(isinstance(item.get("default", ""), str) for item in described["inputs"])
    words = described["implementation"]["container"]["args"]
    given = {next(iter(word.values())) for word in words if isinstance(word, dict)}
    assert given == inputs | outputs


def test_a_palettes_command_runs_the_component(manifest, tmp_path):
    """step_command reads texts as the component's types, writes what it returns and its artifacts;
    what it cannot read is refused."""
    out = {name: str(tmp_path / "out" / name) for name in ("Output", "sizes", "summary")}
    given = {"manifest": manifest, "cluster": "embedded", "state_dir": str(tmp_path / "state")}
    pairs = [word for name, value in (given | out).items() for word in (f"--{name}", value)]
    step_command.main(["recommend_resources", *pairs])
    said = pathlib.Path(out["Output"]).read_text()
    assert json.loads(said) == json.loads(pathlib.Path(out["sizes"]).read_text())
    for wrong, why in (
        (["deploy"], "is no component"),
        (["cleanup_job", "--whose", "x"], "is no input of cleanup_job"),
        (["cleanup_job", "--finished", "yes"], "allowed: true or false"),
        (["export_checkpoint", "--step", "last"], "no int"),
        (["cleanup_job", "run"], "is not --name value"),
    ):
        with pytest.raises(errors.InputError, match=why):
            step_command.main(wrong)


@dsl.component(base_image="python", install_kfp_package=False)
def fit(folder: str, times: int = 2):
    """Say who trains."""
    import os  # noqa: PLC0415 - kfp takes the function alone
    import pathlib  # noqa: PLC0415

    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    pathlib.Path(folder, f"{rank}-of-{world}").write_text("x" * times)


@dsl.component(base_image="python", install_kfp_package=False)
def give(text: str) -> str:
    return text


@dsl.component(base_image="python", packages_to_install=["numpy"], install_kfp_package=False)
def install(text: str):
    print(text)


@pytest.mark.torch
def test_any_component_becomes_an_elastic_job(tmp_path, monkeypatch):
    """Its function is called in every process of a job, with the parameters of the step; what is
    compiled of it holds that and the launch, no more."""
    monkeypatch.chdir(tmp_path)
    together = to_pytorchjob(fit, image="any", replicas=(1, 1), processes=2, memory="512Mi")
    compiler.Compiler().compile(together, str(tmp_path / "fit.yaml"))
    inputs = set(_compiled(tmp_path / "fit.yaml")["root"]["inputDefinitions"]["parameters"])
    assert inputs == {"folder", "times", "run", "cluster", "state_dir", "history", "task_config"}
    said = tmp_path / "said"
    said.mkdir()
    metrics, settings = dsl.Metrics(uri=str(tmp_path / "metrics")), dsl.TaskConfig()
    here = {"run": "run-1", "cluster": "embedded", "state_dir": str(tmp_path / "state")}
    name = together.python_func(str(said), metrics, settings, times=3, **here)
    assert name.startswith("fit-")
    assert {path.name: path.read_text() for path in said.iterdir()} == {
        "0-of-2": "xxx",
        "1-of-2": "xxx",
    }


def test_what_cannot_be_wrapped_is_refused():
    """Outputs, packages to install, and parameters that the launching step needs itself."""
    for component, why in (
        (give, "which a job's pods cannot hand"),
        (install, "installs packages"),
    ):
        with pytest.raises(errors.InputError, match=why):
            to_pytorchjob(component, image="any")
