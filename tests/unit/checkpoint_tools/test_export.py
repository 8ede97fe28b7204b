# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf checkpoint export``: what it writes opens with the formats' own libraries alone."""

from __future__ import annotations

import collections
import os
import pathlib
import resource
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.cli import exit_codes
from tests.support.states import stored_states

pytestmark = pytest.mark.torch

WORLDS = [(1, 1), (2, 1), (3, 2)]
FORMATS = ["safetensors", "torch", "dcp"]


def expected() -> dict[str, object]:
    """What rank 0 saved, as nested dicts."""
    state = stored_states.training(1)
    return state | {name: state[name].state_dict() for name in ("model", "optimizer")}


def same(found: object, wanted: object) -> bool:
    """Bit by bit, in types, shapes and order too."""
    if isinstance(wanted, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        return bytes(_bytes(found)) == bytes(_bytes(wanted))
    if isinstance(wanted, dict):
        assert (isinstance(found, collections.Counter), list(found)) == (
            isinstance(wanted, collections.Counter), list(wanted),
        )  # fmt: skip
        return all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, (list, tuple)):
        assert (type(found), len(found)) == (type(wanted), len(wanted))
        return all(map(same, found, wanted))
    return (type(found), repr(found)) == (type(wanted), repr(wanted))


def _bytes(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize(("step", "round_"), WORLDS)
def test_safetensors_hold_all_tensors_by_name(three, tmp_path, call, step, round_):
    """Whichever world wrote them; what the format lacks stands as bytes."""
    out = tmp_path / "state.safetensors"
    code, said, _ = call("export", three.folder(step, round_), out, "--format", "safetensors")
    assert (code, f"step {step}, 31 tensors" in said) == (0, True)
    found, wanted = load_file(out), expected()
    model, optimizer = wanted["model"], wanted["optimizer"]
    for name, tensor in model.items():
        assert same(found.pop(f"model.{name}"), tensor)
    for index, moments in optimizer["state"].items():
        for name, tensor in moments.items():
            assert same(found.pop(f"optimizer.state.{index}.{name}"), tensor)
    assert _bytes(found.pop("complex")) == _bytes(wanted["complex"])
    assert found.keys() == {"half", "empty", "generator"}
    assert all(same(tensor, wanted[name]) for name, tensor in found.items())
    assert names_in(tmp_path) == [out.name]


@pytest.mark.parametrize(("step", "round_"), WORLDS)
def test_torch_loads_the_nested_state(three, tmp_path, call, step, round_):
    """With weights_only; the very dicts that were saved; a new model and optimizer take them."""
    out = tmp_path / "state.pt"
    code, _, _ = call("export", three.folder(step, round_), out, "--format", "torch")
    assert code == 0
    found = torch.load(out, weights_only=True)
    assert same(found, expected())
    fresh = stored_states.training(9)
    fresh["model"].load_state_dict(found["model"])
    fresh["optimizer"].load_state_dict(found["optimizer"])
    assert same(fresh["model"].state_dict(), expected()["model"])
    assert names_in(tmp_path) == [out.name]


def test_modules_of_torchs_file_have_their_versions(tmp_path, call):
    """Where load_state_dict looks for them: a module that asks for its version gets it."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.BatchNorm1d(2)))
    folder = stored_states.store(DirectoryStorage(tmp_path / "job"), 1, [{"nets": [(net, 1)]}])
    out = tmp_path / "state.pt"
    assert call("export", folder.location, out, "--format", "torch")[0] == 0
    ((found, one),) = torch.load(out, weights_only=True)["nets"]
    assert one == 1
    assert dict(found._metadata) == dict(net.state_dict()._metadata)
    net.load_state_dict(found)


@pytest.mark.parametrize("ranks", [1, 2])
def test_tensors_of_torchs_file_lie_as_they_lay(tmp_path, call, ranks):
    """A fused optimizer that is given moments in another order than its weights reads others'."""
    net = torch.nn.Conv2d(16, 300, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    net(torch.ones(1, 16, 4, 4)).sum().backward()
    optimizer.step()
    states = [{"net": net, "optimizer": optimizer} for _ in range(ranks)]
    folder = stored_states.store(DirectoryStorage(tmp_path / "job"), 1, states)
    out = tmp_path / "state.pt"
    assert call("export", folder.location, out, "--format", "torch")[0] == 0
    found = torch.load(out, weights_only=True)["optimizer"]["state"][0]["exp_avg"]
    wanted = optimizer.state_dict()["state"][0]["exp_avg"]
    assert torch.equal(found, wanted)
    assert found.stride() == wanted.stride()


def test_a_schedule_is_exported_as_it_was_saved(tmp_path, call):
    """MultiStepLR counts its milestones in a Counter, whose methods it calls."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    folder = stored_states.store(DirectoryStorage(tmp_path / "job"), 1, [{"schedule": schedule}])
    out = tmp_path / "state.pt"
    assert call("export", folder.location, out, "--format", "torch")[0] == 0
    assert same(torch.load(out, weights_only=True), {"schedule": schedule.state_dict()})


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(("step", "round_"), WORLDS[1:])
def test_torchs_distributed_checkpoint_loads_it(three, tmp_path, call, step, round_):
    """By its own load into another model and optimizer, and by its own conversion."""
    out = tmp_path / "state.dcp"
    code, _, _ = call("export", three.folder(step, round_), out, "--format", "dcp")
    assert (code, names_in(tmp_path)) == (0, [out.name])
    fresh = stored_states.training(9)
    state = {name: fresh[name].state_dict() for name in ("model", "optimizer")} | {"epoch": 0}
    dcp.load(state, checkpoint_id=out)
    wanted = expected()
    assert same(state, {name: wanted[name] for name in state})
    dcp_to_torch_save(out, tmp_path / "converted.pt")
    found = torch.load(tmp_path / "converted.pt", weights_only=True)
    assert same(found["model"], dict(wanted["model"]))
    assert (found["epoch"], found["raw"], found["names"]) == (3, b"\x00\xff", ("a", "b"))


def test_a_ranks_own_are_said_and_can_be_chosen(three, tmp_path, call):
    """Rank 0's by default; --rank takes another's, all else stays the same."""
    for rank, words in ((0, ()), (2, ("--rank", "2"))):
        out = tmp_path / f"{rank}.pt"
        _, _, err = call("export", three.folder(2), out, "--format", "torch", *words)
        assert f"7 tensors and the plain values are rank {rank}'s own" in err
        found = torch.load(out, weights_only=True)
        assert (found["rank"], found["generator"].tolist()) == (rank, [rank] * 4)
        assert same(found["model"], dict(expected()["model"]))
    assert call("export", three.folder(1), tmp_path / "x", "--format", "torch")[2] == ""


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_is_overwritten_without_force(three, tmp_path, call, form):
    """Refused with exit code 2, what stood there stands; with --force it is replaced, whole."""
    out = tmp_path / "out"
    assert call("export", three.folder(1), out, "--format", form)[0] == 0
    before = content(out)
    code, _, err = call("export", three.folder(2), out, "--format", form)
    assert (code, f"{out} exists; --force replaces it" in err) == (2, True)
    assert content(out) == before
    words = ("--format", form, "--rank", 1, "--force")
    assert call("export", three.folder(2), out, *words)[0] == 0
    assert content(out) != before
    assert names_in(tmp_path) == ["out"]


def test_what_is_not_an_export_is_never_replaced(three, tmp_path, call):
    """A folder, a pipe or a device (``/dev/null``) in a file's place, any other folder or file in a
    folder's place: --force or not."""
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "precious").touch()
    file.touch()
    for out, form in ((folder, "dcp"), (file, "dcp"), (folder, "torch"), (folder, "safetensors")):
        assert call("export", three.path, out, "--format", form, "--force")[0] == 2
    assert call("export", three.path, tmp_path / "none" / "x", "--format", "torch")[0] == 2
    os.mkfifo(tmp_path / "pipe")
    code, _, err = call("export", three.path, tmp_path / "pipe", "--format", "torch", "--force")
    assert (code, (tmp_path / "pipe").is_fifo(), "is no plain file" in err) == (2, True, True)
    code, _, err = call("export", three.path, tmp_path / "new", "--format", "folder")
    assert (code, "safetensors, torch or dcp is" in err) == (2, True)
    assert (names_in(folder), file.stat().st_size) == (["precious"], 0)


@pytest.mark.parametrize("form", FORMATS)
def test_a_damaged_checkpoint_is_not_exported(job, tmp_path, call, form):
    """One flipped bit: exit code 1, the file is named, and nothing is left beside what was."""
    damaged = job.folder(2) / "rank-00001.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-5] ^= 1
    damaged.write_bytes(data)
    folder = tmp_path / "out"
    folder.mkdir()
    code, _, err = call("export", job.folder(2), folder / "state", "--format", form)
    assert (code, "rank-00001.safetensors has CRC-32C" in err) == (1, True)
    assert names_in(folder) == []


@pytest.mark.skipif(not hasattr(torch, "int4"), reason="this torch has no integers of four bits")
def test_a_type_that_torch_cannot_write_is_refused(tmp_path, call):
    """Weights of four bits: torch's own formats have none; safetensors has their bytes."""
    state = {"quantized": torch.arange(8, dtype=torch.uint8).view(torch.int4), "epoch": 3}
    folder = stored_states.store(DirectoryStorage(tmp_path / "job"), 1, [state])
    for form in ("torch", "dcp"):
        code, _, err = call("export", folder.location, tmp_path / "out", "--format", form)
        assert (code, "quantized is of torch's type int4" in err) == (2, True), err
    out = tmp_path / "out"
    assert call("export", folder.location, out, "--format", "safetensors")[0] == 0
    assert load_file(out)["quantized"].tolist() == list(range(8))
    assert names_in(tmp_path) == ["job", "out"]


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_system_that_refuses_leaves_nothing(three, tmp_path, call, form):
    """No file may have so many bytes: an error that names OUT, no part of it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        code, _, err = call("export", three.path, tmp_path / "state", "--format", form)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, "state cannot be written: File too large" in err) == (1, True)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("form", ["torch", "dcp"])
def test_a_disk_that_fills_up_is_told_in_a_sentence(three, tmp_path, call, form):
    """The state fits once, and what torch makes of it does not: torch speaks of its own file's
    positions, or shows a traceback."""
    once = tmp_path / "once"
    assert call("export", three.path, once, "--format", "safetensors")[0] == 0
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (once.stat().st_size, limits[1]))
    try:
        code, _, err = call("export", three.path, tmp_path / "state", "--format", form)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, err) == (1, f"error: {tmp_path / 'state'} cannot be written: File too large\n")
    assert names_in(tmp_path) == ["once"]


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_that_is_ended_leaves_nothing(three, tmp_path, form):
    """By SIGTERM, as timeout and Kubernetes end it: what it has written has a hidden name."""
    code = (
        "import sys\n"
        "from rover_kf.cli import main\n"
        "from rover_kf.checkpoint_tools.consolidated_state import ConsolidatedState\n"
        "fill = ConsolidatedState.fill_file\n"
        "def stopped(*words):\n"
        "    fill(*words)\n"
        "    print('written', flush=True)\n"
        "    sys.stdin.read()\n"
        "ConsolidatedState.fill_file = stopped\n"
        "main(['checkpoint', 'export', *sys.argv[1:]])\n"
    )
    words = [str(three.path), str(tmp_path / "out"), "--format", form]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.terminate()
        assert process.wait() == exit_codes.TERMINATED
    assert names_in(tmp_path) == []


def names_in(folder: pathlib.Path) -> list[str]:
    """Hidden ones too."""
    return sorted(path.name for path in folder.iterdir())


def content(out) -> dict[str, bytes]:
    """Of a file, or of a folder's files."""
    paths = sorted(out.iterdir()) if out.is_dir() else [out]
    return {path.name: path.read_bytes() for path in paths}
