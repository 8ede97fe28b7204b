# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What becomes of a trainer's command."""

from __future__ import annotations

import pytest

from rover_kf.injection import command
from rover_kf.injection.command import ParsedCommand

SH = ("/bin/sh", "/rover/runtime/rover-run")
RUN = "/rover/runtime/rover_run.py"


def line(command_words, args=None):
    return ParsedCommand(tuple(command_words), None if args is None else tuple(args))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (line(["torchrun", "x.py"]), line([*SH, "x.py"])),
        (
            line(["/opt/conda/bin/torchrun", "--nproc-per-node=2", "x.py", "-v"]),
            line([*SH, "--nproc-per-node=2", "x.py", "-v"]),
        ),
        (line(["torchrun"], ["-m", "pkg"]), line(SH, ["-m", "pkg"])),
        (
            line(["python", "-m", "torch.distributed.run", "x.py"]),
            line(["python", RUN, "x.py"]),
        ),
        (
            line(["python3"], ["-u", "-m", "torch.distributed.run", "--nnodes=2", "x.py"]),
            line(["python3", "-u", RUN], ["--nnodes=2", "x.py"]),
        ),
        (
            line(["python3.11", "x.py", "--lr", "1"]),
            line(["python3.11", RUN, "--nproc-per-node=2", "x.py", "--lr", "1"]),
        ),
        (
            line(["python"], ["x.py"]),
            line(["python", RUN, "--nproc-per-node=2"], ["x.py"]),
        ),
        (
            line(["python", "-W", "ignore", "-X", "dev", "-m", "pkg.train", "a"]),
            line(
                [
                    *("python", "-W", "ignore", "-X", "dev", RUN),
                    *("--nproc-per-node=2", "-m", "pkg.train", "a"),
                ]
            ),
        ),
        (
            line(["python", "-m", "torch.distributed.launch", "--use_env"], ["x.py"]),
            line(["python", RUN], ["x.py"]),
        ),
        (
            line(["python", "-m"], ["torch.distributed.launch", "--use-env", "x.py"]),
            line(["python", RUN], ["x.py"]),
        ),
    ],
)
def test_what_starts_training_becomes_rover_run(before, after):
    """torchrun, torch.distributed.run and plain python start rover-run with the same arguments,
    and what stood in args stays in args."""
    found = command.rewrite(before, 2)
    assert found == after
    assert command.is_rewritten(found)
    assert command.restore(found, before) == before


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (ParsedCommand(None, None), "no command"),
        (ParsedCommand(None, ("x.py",)), "no command"),
        (line([]), "no command"),
        (line(["sh", "-c", "torchrun x.py"]), "neither torchrun nor python"),
        (line(["bash", "run.sh"]), "neither torchrun nor python"),
        (line(["python", "-c", "print(1)"]), "no script or module"),
        (line(["python"]), "no script or module"),
        (line(["python", "-m"]), "no script or module"),
        (line(["python", "-i", "x.py"]), "no script or module"),
        (line(["python2", "x.py"]), "neither torchrun nor python"),
        (line(["python", "-m", "torch.distributed.launch", "x.py"]), "--local-rank"),
        (line(["python", "-m", "accelerate.commands.launch", "x.py"]), "processes of its own"),
    ],
)
def test_what_cannot_be_known_stays(before, reason):
    """Anything else is left as it is, with a sentence that says why."""
    found = command.rewrite(before, 1)
    assert isinstance(found, str)
    assert reason in found
    assert command.restore(before, None) == before


@pytest.mark.parametrize(
    ("stated", "count"), [("4", 4), (2, 2), ("auto", 1), ("gpu", 1), (None, 1)]
)
def test_plain_python_starts_as_many_processes_as_stated(stated, count):
    """nprocPerNode counts if it is a number; else plain python stays one process."""
    assert command.processes_of(stated) == count


def test_a_lost_annotation_loses_no_work():
    """Without the recorded original a rewritten line turns into one that is rewritten alike."""
    for before in (
        line(["/opt/bin/torchrun", "a.py"]),
        line(["python", "-u", "a.py"], ["b"]),
        line(["python3", "-m", "torch.distributed.run"], ["a.py"]),
    ):
        done = command.rewrite(before, 3)
        again = command.restore(done, None)
        assert not command.is_rewritten(again)
        assert command.rewrite(again, 3) == done


def test_an_edit_of_the_rewritten_line_is_kept():
    """Someone who edits the arguments of an injected job gets those, not the recorded ones."""
    before = line(["torchrun"], ["train.py", "--lr=1"])
    done = command.rewrite(before, 1)
    edited = ParsedCommand(done.command, ("train.py", "--lr=2"))
    assert command.restore(edited, before) == line(["torchrun"], ["train.py", "--lr=2"])


def test_a_changed_number_of_processes_is_no_edit():
    """The original is still known after spec.nprocPerNode was changed."""
    before = line(["python", "train.py"])
    assert command.restore(command.rewrite(before, 4), before) == before


def test_the_record_is_read_back():
    """Commands by replica type survive the annotation; an unreadable annotation is none."""
    lines = {"Worker": line(["torchrun", "a b.py"]), "Master": line(["python"], ["x"])}
    annotation = "rover-kf.io/original-command"
    manifest = {"metadata": {"annotations": {annotation: command.record(lines)}}}
    assert command.recorded(manifest) == lines
    for text in ("{", "[]", '{"Worker": 3}', "null"):
        assert command.recorded({"metadata": {"annotations": {annotation: text}}}) == {}
    assert command.recorded({"metadata": {}}) == {}
