# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""torchrun's command line, as rover-run reads it."""

from __future__ import annotations

import pytest

from rover_kf import errors
from rover_kf.launcher.arguments import parse


def test_stock_command():
    """A stock command with torchrun's options runs; what has no effect is named."""
    command = "--nnodes=1:4 --nproc_per_node 2 --rdzv-backend c10d --max-restarts=3 t.py --lr 1 -m"
    launch = parse(command.split(), {})
    assert (launch.target, launch.arguments) == ("t.py", ("--lr", "1", "-m"))
    assert (launch.processes, launch.module) == ("2", False)
    assert launch.ignored == ("nnodes", "rdzv-backend", "max-restarts")
    operators = {"PET_NNODES": "1:4", "PET_RDZV_BACKEND": "c10d", "PET_STANDALONE": "1"}
    assert parse(["t.py"], operators).ignored == ()


def test_variables():
    """PET_* variables stand for options that are not given; an option goes first."""
    found = parse(["t.py"], {"PET_NPROC_PER_NODE": "auto", "PET_MODULE": "1"})
    assert (found.processes, found.module) == ("auto", True)
    assert parse(["--nproc-per-node=3", "t.py"], {"PET_NPROC_PER_NODE": "auto"}).processes == "3"
    assert parse(["-m", "package.train"], {}).module


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ([], "training_script"),
        (["--no-python", "-m", "a.out"], "a program is no module"),
        (["--nproc-per-node=0", "t.py"], "a number from 1"),
        (["--nproc-per-node=many", "t.py"], "a number from 1"),
        (["--unheard-of", "t.py"], "--unheard-of"),
    ],
)
def test_refused(command, says):
    """What cannot be honoured is refused with what would be."""
    with pytest.raises(errors.InputError, match=says):
        parse(command, {})
