# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Finding a script in a command, and counting tensors that live."""

from __future__ import annotations

import pytest
import torch

from rover_kf.dry_run import script
from rover_kf.dry_run.model_size import LiveTensors

MIB = 1 << 20


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ("python train.py --lr 1", "train.py", ("--lr", "1")),
        ("/usr/bin/python3.11 -u -W ignore train.py", "train.py", ()),
        ("torchrun --nproc-per-node 2 train.py --steps 3", "train.py", ("--steps", "3")),
        ("python -m torch.distributed.run --nnodes=1:3 a/t.py x", "a/t.py", ("x",)),
        ("/bin/sh /rover/runtime/rover-run --nproc-per-node=1 t.py -v", "t.py", ("-v",)),
        ("python /rover/runtime/rover_run.py --nproc-per-node=2 t.py", "t.py", ()),
    ],
)
def test_the_script_is_found(line, name, arguments):
    """Behind python, torchrun and rover-run, with their options taken off."""
    assert script.parse_command(line.split()) == script.UserScript(name, arguments)


def test_a_module_is_found():
    """python -m names a module; torchrun -m does, too."""
    for line in ("python -u -m pkg.train --x", "torchrun -m pkg.train --x"):
        assert script.parse_command(line.split()) == script.UserScript(
            "pkg.train", ("--x",), is_module=True
        )


@pytest.mark.parametrize("line", ["", "bash train.sh", "python", "python -m", "torchrun"])
def test_a_command_without_a_script_is_refused(line):
    """Nothing is guessed."""
    with pytest.raises(ValueError, match=r"."):
        script.parse_command(line.split())


def test_live_tensors_are_counted_until_they_go():
    """The peak is what lived at once: views and freed tensors do not add to it."""
    known = torch.zeros(MIB // 4)
    with LiveTensors([known]) as counter:
        assert counter.peak == MIB
        for _ in range(5):
            made = torch.ones(MIB // 4)
            made.view(2, -1).t()
            del made
        assert counter.peak == 2 * MIB
        both = torch.ones(MIB // 4), torch.ones(MIB // 4)
        assert counter.peak == 3 * MIB
    assert len(both) == 2


def test_activations_grow_with_the_batch():
    """Of a real step, by the batch's share; the model's by none."""
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    weights = list(model.parameters())
    peaks = []
    for batch in (1024, 2048, 4096):
        with LiveTensors(weights) as counter:
            model(torch.ones(batch, 256)).sum().backward()
        model.zero_grad()
        peaks.append(counter.peak)
    assert peaks[0] > sum(weight.nbytes for weight in weights)
    assert peaks[2] - peaks[1] == pytest.approx(2 * (peaks[1] - peaks[0]), rel=0.05)
