# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf checkpoint`` ls, show, verify and rm: on a folder, and on a real S3 server."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from unittest import mock

import crc32c
import pytest
import torch

from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.tensor_layout import read_tensor_layout
from rover_kf.checkpoint.storage import directory
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.factory import open_storage
from rover_kf.checkpoint.storage.syscalls import Syscalls
from rover_kf.checkpoint_tools import consolidated_state
from tests.support.servers.object_server import object_server, offer
from tests.support.states import identities, stored_states

# The S3 server may have to be compiled first: that has a limit of its own.
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300, func_only=True)]

FIRST, SECOND, THIRD = "step-000000000001-1", "step-000000000002-1", "step-000000000003-2"


def flip(path: pathlib.Path) -> None:
    """One bit of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def truncate(path: pathlib.Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def test_ls_tells_what_each_checkpoint_is(three, call):
    """Step, round, world, how the state was held, files, bytes, age."""
    code, out, _ = call("ls", three.path)
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    columns = ["step", "round", "ranks", "state", "files", "bytes", "age", "metrics"]
    assert lines[0] == columns
    assert "accuracy 0.75, loss 0.5" in out
    assert [line[:5] for line in lines[1:]] == [
        ["1", "1", "1", "replicated", "1"],
        ["2", "1", "3", "replicated", "3"],
        ["3", "2", "2", "sharded", "2"],
    ]
    assert all(line[-1] == "whole" for line in lines[1:])
    found = json.loads(call("ls", three.path, "--json")[1])
    sizes = [
        sum(f.stat().st_size for f in three.path.glob(f"{item['name']}/rank*")) for item in found
    ]
    assert [item["bytes"] for item in found] == sizes
    assert [item["saved_at"] for item in found] == [1_700_000_000, 1_700_000_060, 1_700_000_120]
    assert [item["metrics"] for item in found] == [{}, {"accuracy": 0.75, "loss": 0.5}, {}]
    assert all(item["whole"] for item in found)
    assert call("ls", three.folder(2))[1].splitlines()[1].split()[:2] == ["2", "1"]


def test_names_of_metrics_are_shown_as_they_are(tmp_path, call):
    """Brackets are no markup."""
    storage = open_storage(str(tmp_path), "demo")
    state = stored_states.training(1, rank=0)
    stored_states.store(storage, 1, [state], metrics={"acc[val]": 0.5, "loss[/test]": 2.0})
    code, out, _ = call("ls", tmp_path / "demo")
    assert (code, "acc[val] 0.5, loss[/test] 2" in out) == (0, True)


def test_a_terminal_cuts_no_word(tmp_path):
    """However narrow it is: what is wrong with a checkpoint, its step and its metrics are there."""
    storage = open_storage(str(tmp_path), "demo")
    metrics = {"eval_accuracy": 0.75, "perplexity": 1234.5}
    for step in (100, 123456789):
        stored_states.store(storage, step, [{"epoch": 1}], 1763000000, metrics=metrics)
    (rank_file,) = (tmp_path / "demo").glob("step-000000000100-*/rank-*")
    rank_file.unlink()
    said = shown_on_terminal(40, "checkpoint", "ls", str(tmp_path / "demo"))
    words = {"100", "123456789", "1763000000", "eval_accuracy", "perplexity", "whole", "missing;"}
    assert words <= set(said.split())
    assert "…" not in said


def shown_on_terminal(columns: int, *words: str) -> str:
    """What the command prints on a terminal of so many columns, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {key: os.environ[key] for key in os.environ if key not in {"COLUMNS", "LINES"}}
    command = [sys.executable, "-m", "rover_kf.cli", *words]
    with subprocess.Popen(command, stdout=theirs, env={**environment, "TERM": "xterm"}) as process:
        os.close(theirs)
        said = bytearray()
        # The end of what is said is an error of the terminal's on Linux.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 4096):
                said += piece
        os.close(ours)
    assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", said.decode())


def test_ls_of_nothing_says_so(tmp_path, monkeypatch, call):
    """As of a URL one level too high, or with a typing error: a bucket has no folders."""
    with object_server(tmp_path / "server") as server:
        offer(server, monkeypatch)
        state = stored_states.training(1, rank=0)
        stored_states.store(open_storage("s3://checkpoints/runs", "demo"), 1, [state])
        for path in ("s3://checkpoints/runs", "s3://checkpoints/runs/dmeo", tmp_path):
            code, out, err = call("ls", path, "--json")
            said = f"{path} holds no checkpoint; PATH is <checkpoint.path>/<job>\n"
            assert (code, out, err) == (0, "[]\n", said)


def test_ls_tells_what_is_wrong(job, call):
    """A missing file, a damaged manifest, no manifest; each in its own row."""
    (job.folder(2) / "rank-00001.safetensors").unlink()
    flip(job.folder(1) / manifest.NAME)
    (job.folder(3, 2) / manifest.NAME).unlink()
    found = json.loads(call("ls", job.path, "--json")[1])
    assert [item["whole"] for item in found] == [False] * 3
    problems = [item["problem"] for item in found]
    assert f"{FIRST}/manifest.json" in problems[0]
    assert f"{SECOND}/rank-00001.safetensors is missing" in problems[1]
    assert problems[2] == "no manifest: being written or removed, or left by a crash"
    assert [item["files"] for item in found] == [1, 2, 2]


def test_show_describes_the_whole_state(three, call):
    """All tensors in their full shapes whichever world wrote them, plain values with types."""
    tensors = {}
    for step, round_ in ((1, 1), (2, 1), (3, 2)):
        told = json.loads(call("show", three.folder(step, round_), "--json")[1])
        assert told["manifest"]["state"]["step"] == step
        tensors[step] = {item["name"]: item for item in told["tensors"]}
        values = {item["name"]: item["value"] for item in told["values"]}
        assert values["epoch"] == 3
        assert values["best"] == {"f": "nan"}
        assert values["names"] == {"t": ["a", "b"]}
        assert values["optimizer.param_groups.0.lr"] == 1e-3
    assert tensors[1] == tensors[2] == tensors[3]
    weight = tensors[3]["model.0.weight"]
    assert (weight["dtype"], weight["shape"]) == ("F32", [130, 300])
    assert (weight["bytes"], weight["own"]) == (156_000, False)
    assert tensors[3]["model.1.running_mean"]["own"]
    assert tensors[3]["complex"]["dtype"] == "complex128"


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_show_reads_whose_tensors_are_a_few_times(three, call, monkeypatch, words):
    """Not once for each tensor: of thousands it is a long text."""
    read = mock.Mock(wraps=read_tensor_layout)
    monkeypatch.setattr(consolidated_state, "read_tensor_layout", read)
    code, out, _ = call("show", three.path, *words)
    assert (code, out.count("exp_avg_sq"), read.call_count < 9) == (0, 6, True)


def test_show_says_whose_values_are_shown(three, call):
    """A table for people; of a folder the newest, of a step that step, of a rank its own values."""
    out = call("show", three.path)[1]
    assert "step 3 of round 2 of an unnamed job, written by 2 ranks (sharded)" in out
    assert "rank 0's own; each of the 2 ranks has its own" in out
    out = call("show", three.path, "--step", 2, "--rank", 2)[1]
    assert out.splitlines()[0].endswith(SECOND)
    assert any(line.split() == ["rank", "2"] for line in out.splitlines())
    assert "own; each" not in call("show", three.folder(1))[1]


def test_long_values_are_cut_for_people(tmp_path, call):
    """Generators' states are thousands of characters: a line shows some, JSON has all; of two that
    differ the place where they do."""
    storage = open_storage(str(tmp_path), "demo")
    for step in (1, 2):
        state = {"generators": {"python": (3, (0,) * 624, step), "numpy": b"x" * 2500}}
        stored_states.store(storage, step, [{**state, "w": torch.ones(1)}])
    one, two = (storage.folder(identities.state(step)).location for step in (1, 2))
    out = call("show", one)[1]
    assert max(map(len, out.splitlines())) < 200
    assert "(3, (0, 0, 0" in out
    assert len(call("show", one, "--json")[1]) > 2500
    code, out, _ = call("diff", one, two)
    assert (code, max(map(len, out.splitlines())) < 300) == (1, True)
    assert "0), 1) | …" in out
    assert len(call("diff", one, two, "--json")[1]) > 2 * 3 * 624


def test_a_damaged_header_is_told_with_its_file(job, call):
    """By whatever reads it, whichever bit it is; where files differ in a shape, with their step."""
    path = job.folder(2) / "rank-00001.safetensors"
    content = bytearray(path.read_bytes())
    end = int.from_bytes(content[:8], "little") + 8
    for at in (8, *range(9, end, end // 40)):
        for bit in (1, 0x80):
            damaged = content.copy()
            damaged[at] ^= bit
            path.write_bytes(damaged)
            code, _, err = call("show", job.path, "--step", 2, "--rank", 1, "--json")
            assert code == 0 or str(path) in err or f"{job.folder(2)}: " in err, err
    code, _, err = call("diff", job.folder(1), job.folder(2))
    assert (code, str(path) in err) == (1, True), err


def test_verify_reads_every_byte(job, call):
    """Exit code 0 when all is well. One flipped bit: 1, and the file is named; others are too."""
    code, out, _ = call("verify", job.path)
    assert (code, out.count(": whole, ")) == (0, 3)
    flip(job.folder(2) / "rank-00000.safetensors")
    truncate(job.folder(2) / "rank-00001.safetensors")
    (job.folder(2) / "rank-00002.safetensors").unlink()
    code, out, _ = call("verify", job.path)
    assert (code, out.count(": whole, "), f"{SECOND}: DAMAGED" in out) == (1, 2, True)
    assert "rank-00000.safetensors has CRC-32C" in out
    assert "rank-00001.safetensors has " in out
    assert "rank-00002.safetensors is missing" in out
    assert call("verify", job.path, "--step", 1)[0] == 0
    assert call("verify", job.folder(2))[0] == 1
    told = json.loads(call("verify", job.path, "--json")[1])
    assert [item["whole"] for item in told] == [True, False, True]
    assert [bool(file["problem"]) for file in told[1]["files"]] == [False, True, True, True]


def test_a_damaged_manifest_is_damage_and_a_missing_one_is_none(job, call):
    """A job that runs always has unfinished folders; but who names one wants it whole."""
    (job.folder(3, 2) / manifest.NAME).unlink()
    code, out, _ = call("verify", job.path)
    assert (code, f"{THIRD}: unfinished" in out) == (0, True)
    assert call("verify", job.folder(3, 2))[0] == 1
    flip(job.folder(1) / manifest.NAME)
    code, out, _ = call("verify", job.path)
    assert (code, f"{FIRST}: DAMAGED" in out) == (1, True)


@pytest.mark.parametrize("verb", ["ls", "verify"])
def test_what_retention_takes_meanwhile_is_no_damage(job, call, monkeypatch, verb):
    """Of a job that runs: the oldest goes while its manifest or its file is about to be read."""
    method = {"ls": "read_manifest", "verify": "read_range"}[verb]
    read = getattr(DirectoryStorage, method)

    def read_late(storage, folder, *words):
        if folder.step == 1 and job.folder(1).exists():
            job.storage.remove(folder)
        return read(storage, folder, *words)

    monkeypatch.setattr(DirectoryStorage, method, read_late)
    code, out, err = call(verb, job.path)
    assert (code, err) == (0, "")
    assert "no manifest: being written or removed, or left by a crash" in out
    assert not job.folder(1).exists()
    assert out.count("whole") == 2


@pytest.mark.parametrize("verb", ["show", "diff", "export"])
def test_what_goes_while_it_is_read_is_told_as_that(job, tmp_path, call, monkeypatch, verb):
    """As by retention beside an export that takes minutes: no file is said to lack."""
    read, folder = DirectoryStorage.read_range, job.folder(1)
    # Where it goes: a header is read for show, and tensors after it.
    left = 0 if verb == "show" else 1

    def read_late(storage, of, file, *where):
        nonlocal left
        if of.step == 1 and (left := left - 1) < 0 and folder.exists():
            job.storage.remove(of)
        return read(storage, of, file, *where)

    monkeypatch.setattr(DirectoryStorage, "read_range", read_late)
    words = {"diff": (job.folder(2),), "export": (tmp_path / "out", "--format", "torch")}
    code, _, err = call(verb, folder, *words.get(verb, ()))
    assert (code, err.count("\n")) == (1, 1)
    assert f"{folder} was removed while it was read, as a running job's retention does" in err
    assert list(tmp_path.glob("*out*")) == []


def test_rm_keeps_what_the_job_needs(job, call):
    """Not the newest good one, not what may be being written, not the last resort, but by force."""
    code, _, err = call("rm", job.path, 1, 3)
    assert (code, f"{THIRD} is the newest good checkpoint" in err) == (2, True)
    assert len(job.storage.complete_folders()) == 3
    truncate(job.folder(3, 2) / "rank-00000.safetensors")
    assert f"{SECOND} is the newest good" in call("rm", job.path, 2)[2]
    code, out, _ = call("rm", job.path, THIRD)
    assert (
        code,
        out.endswith(f"{THIRD} removed\n"),
        job.folder(3, 2).exists(),
    ) == (0, True, False)
    (job.folder(1) / manifest.NAME).unlink()
    assert "a job that runs may be writing it" in call("rm", job.folder(1))[2]
    assert call("rm", job.folder(1), "--force")[0] == 0
    truncate(job.folder(2) / "rank-00000.safetensors")
    assert "a damaged one may be all that is left" in call("rm", job.path, 2)[2]
    assert [path.name for path in job.path.iterdir()] == [SECOND]
    assert call("rm", job.path, 2, "--force")[0] == 0
    assert list(job.path.iterdir()) == []


def test_rm_keeps_an_older_one_where_the_newest_is_damaged(job, call):
    """Its size is right and a bit is not: the one before it is what the job would resume from."""
    flip(job.folder(3, 2) / "rank-00001.safetensors")
    code, _, err = call("rm", job.path, 2, 1)
    assert (code, f"{SECOND} is the newest good checkpoint" in err) == (2, True)
    assert len(job.storage.complete_folders()) == 3
    assert call("rm", job.path, 3, 1)[0] == 0
    flip(job.folder(2) / "rank-00002.safetensors")
    assert "a damaged one may be all that is left" in call("rm", job.path, 2)[2]
    assert [path.name for path in job.path.iterdir()] == [SECOND]


def test_rm_of_what_is_not_there_removes_nothing(job, call):
    """One wrong word among good ones; no word at all."""
    code, _, err = call("rm", job.path, 1, 9)
    assert (code, "no checkpoint '9'" in err, len(job.storage.complete_folders())) == (2, True, 3)
    code, _, err = call("rm", job.path)
    assert (code, "name what to remove" in err) == (2, True)


def test_of_many_checkpoints_a_message_names_the_newest(tmp_path, call):
    """A job that keeps every step has thousands: a terminal shows what is wrong above them."""
    storage = open_storage(str(tmp_path), "demo")
    for step in range(1, 31):
        stored_states.store(storage, step, [{"epoch": 1}])
    for words in (("rm", 99), ("show", "--step", 99)):
        code, _, err = call(words[0], tmp_path / "demo", *words[1:])
        assert (code, "30, the newest " in err, len(err) < 500) == (2, True, True), err


def deny(monkeypatch: pytest.MonkeyPatch, denied: pathlib.Path) -> None:
    """Let the file system refuse a file, or all in a folder: whoever runs tests may be root."""
    calls = ((directory, "_open_file"), (Syscalls, "size"))
    for module, name in calls if denied.is_dir() else calls[:1]:
        real = getattr(module, name)

        def asked(*words, real=real):
            if words[-1].is_relative_to(denied):
                raise PermissionError(errno.EACCES, "Permission denied", str(words[-1]))
            return real(*words)

        monkeypatch.setattr(module, name, asked)


@pytest.mark.parametrize("what", ["", manifest.NAME, "rank-00000.safetensors"])
def test_what_cannot_be_read_hides_no_other(job, call, monkeypatch, what):
    """Another user's folder or file, or a bad sector: it is told, and all else is as ever."""
    deny(monkeypatch, job.folder(1) / what)
    found = json.loads(call("ls", job.path, "--json")[1])
    assert [item["whole"] for item in found] == [what.startswith("rank"), True, True]
    code, out, err = call("verify", job.path)
    assert (code, err, f"{FIRST}: UNREADABLE, " in out) == (1, "", True), out
    assert (out.count(": whole, "), "Permission denied" in out) == (2, True)
    assert (call("show", job.path)[0], call("show", job.path, "--step", 2)[0]) == (0, 0)
    code, _, err = call("show", job.path, "--step", 1)
    assert (code, f"{job.folder(1)}" in err, "Permission denied" in err) == (1, True, True), err
    assert call("rm", job.path, 2)[0] == 0


@pytest.mark.parametrize("what", ["", manifest.NAME, "rank-00000.safetensors"])
def test_what_cannot_be_read_is_not_removed_as_damaged(job, call, monkeypatch, what):
    """It may be what the job would resume from; nor is an older one shown in its place."""
    deny(monkeypatch, job.folder(3, 2) / what)
    code, _, err = call("rm", job.path, 3)
    wanted = 1 if what.startswith("rank") else 2
    assert (code, "Permission denied" in err, THIRD in err) == (wanted, True, True), err
    code, _, err = call("show", job.path)
    assert (code, "Permission denied" in err, THIRD in err) == (1, True, True)
    assert len(list(job.path.iterdir())) == 3


def test_what_another_release_wrote_is_not_removed_as_damaged(job, call):
    """It may be the newest that is good; nor is an older one shown in its place."""
    path = job.folder(3, 2) / manifest.NAME
    tree = json.loads(path.read_bytes())["manifest"] | {"format": 3}
    path.write_text(
        json.dumps({"manifest": tree, "crc32c": crc32c.crc32c(manifest._canonical(tree))})
    )
    for words in (("rm", job.path, 3), ("show", job.path)):
        code, _, err = call(*words)
        assert (code != 0, "has format 3" in err, THIRD in err) == (True, True, True), err
    code, out, _ = call("verify", job.path)
    assert (code, f"{THIRD}: UNREADABLE, " in out) == (1, True), out
    assert len(list(job.path.iterdir())) == 3


def test_rm_by_path_removes_that_one_alone(job, tmp_path, monkeypatch, call):
    """As a shell completes them, relative too; one of the same name in another job is no word."""
    other = tmp_path / "storage" / "other"
    shutil.copytree(job.path, other)
    code, _, err = call("rm", job.folder(1), other / SECOND)
    assert (code, f"there is no checkpoint '{other / SECOND}'" in err) == (2, True)
    assert (len(job.storage.complete_folders()), len(list(other.iterdir()))) == (3, 3)
    monkeypatch.chdir(job.path)
    assert call("rm", ".", f"{FIRST}/", job.folder(2))[0] == 0
    assert ([path.name for path in job.path.iterdir()], len(list(other.iterdir()))) == ([THIRD], 3)


class Stopping(Syscalls):
    """Ends with an error at one of its calls, as if the process had been killed there."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def remove(self, path):
        self._count()
        super().remove(path)

    def sync_folder(self, path):
        self._count()
        super().sync_folder(path)

    def remove_folder(self, path):
        self._count()
        super().remove_folder(path)


def test_a_half_removed_checkpoint_never_looks_whole(three, tmp_path):
    """Stopped before any of its calls: all of it is there, or it has no manifest."""
    stops, gone = 0, False
    while not gone:
        root = tmp_path / str(stops) / "demo"
        shutil.copytree(three.path, root)
        storage = DirectoryStorage(root, Stopping(stops))
        folder = storage.folder(identities.state(2))
        with contextlib.suppress(KeyboardInterrupt):
            storage.remove(folder)
            gone = True
        assert (folder in storage.complete_folders()) == (stops == 0)
        if stops == 0:
            storage.verify(folder)
        stops += 1
    print(f"stopped before each of {stops - 1} calls")
    assert stops > len(three.storage.sizes(folder))
    assert not pathlib.Path(folder.location).exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ls", "nowhere"), "nowhere is no folder"),
        (("ls", "s3://bucket"), "names no job"),
        (("ls", "{root}"), "holds jobs, not checkpoints; name one: ['demo']"),
        (
            ("show", "{job}", "--step", "7"),
            "no whole checkpoint of step 7; folders of steps: 1, 2, 3 ",
        ),
        (("show", "{job}", "--rank", "5"), "has no rank 5"),
        (("verify", "{job}", "--step", "7"), "no checkpoint of step 7"),
        (("export", "{job}", "x", "--format", "onnx"), "'onnx' is not one of"),
        (("show",), "Missing argument"),
    ],
)
def test_bad_input_ends_with_2(three, call, words, said):
    """And with a sentence that says what is allowed."""
    paths = {"root": three.path.parent, "job": three.path}
    code, _, err = call(*(word.format(**paths) for word in words))
    assert (code, said in err) == (2, True), err


def test_an_empty_path_is_not_this_folder(job, call, monkeypatch):
    """As of a shell's variable that is not set: nothing of the working directory is removed."""
    monkeypatch.chdir(job.path)
    for words in (("ls", ""), ("rm", "", 1), ("rm", job.path, "")):
        code, _, err = call(*words)
        assert (code, len(job.storage.complete_folders()), "allowed: a job's" in err) == (
            2,
            3,
            words[1] == "",
        )


def test_a_path_that_the_file_system_refuses_is_told(three, tmp_path, call):
    """As a folder that only others may read; here by a name that is too long for it."""
    refused = tmp_path / ("x" * 300) / "demo"
    code, _, err = call("ls", refused)
    assert (code, err) == (1, f"error: {refused} cannot be looked at: File name too long\n")
    code, _, err = call("export", three.path, refused, "--format", "safetensors")
    assert (code, "File name too long" in err) == (1, True), err


@pytest.mark.parametrize(
    "path",
    [
        "s3://user:secretpw@bucket/x",
        "s3://bucket/x?AWS_SECRET_ACCESS_KEY=secretpw",
        "S3://user:secretpw@bucket/x",
        "https://user:secretpw@example.org/x/step-000000000001-1",
        "s3://secretpw@/x",
    ],
)
def test_a_key_in_a_url_is_refused_and_not_shown(call, path):
    """Terminals are logged, too; where keys belong is said."""
    for words in (("ls", path), ("diff", path, path), ("rm", path, 1)):
        code, out, err = call(*words)
        assert (code, "in the environment" in err) == (2, True), err
        assert "secretpw" not in out + err


def test_an_object_store_is_looked_at_the_same_way(tmp_path, monkeypatch, call):
    """By its URL, credentials from the environment: ls, show, verify with a damage, diff, rm."""
    with object_server(tmp_path / "server") as server:
        offer(server, monkeypatch)
        storage = open_storage("s3://checkpoints/runs", "demo")
        for step in (1, 2):
            stored_states.store(storage, step, [stored_states.training(1, rank=r) for r in (0, 1)])
        job = "s3://checkpoints/runs/demo"
        found = json.loads(call("ls", job, "--json")[1])
        assert [(item["step"], item["files"], item["whole"]) for item in found] == [
            (1, 2, True), (2, 2, True)
        ]  # fmt: skip
        assert "written by 2 ranks" in call("show", job)[1]
        assert call("verify", job)[0] == 0
        assert call("diff", f"{job}/{FIRST}", f"{job}/{SECOND}")[0] == 0
        flip(server.bucket / "runs" / "demo" / FIRST / "rank-00001.safetensors")
        code, out, _ = call("verify", job)
        assert (code, f"{FIRST}/rank-00001.safetensors has CRC-32C" in out) == (1, True)
        assert call("rm", job, 2)[0] == 2
        assert call("rm", job, 1)[0] == 0
        assert [folder.step for folder in storage.folders()] == [2]
        for words in (("ls",), ("show",), ("verify",), ("diff", job), ("rm",)):
            code, _, err = call(words[0], f"{job}/{FIRST}", *words[1:])
            assert (code, f"{SECOND}\n" in err, "being written" in err) == (2, True, False), err
