# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a sample script unchanged; on the node that the file ``bad-node`` names, GPUs are broken.

``breaking.py digits.py --steps 100``: there, each training process ends at its next step as one
does whose GPU has fallen off the bus. Where the file HURRY is, input is not limited any more.
"""

import importlib.util
import os
import pathlib
import sys

import rover_kf

HURRY, BAD_NODE = pathlib.Path("/checkpoints/hurry"), pathlib.Path("/checkpoints/bad-node")


class Breaking(rover_kf.Checkpointer):
    """The same, until its node is the bad one."""

    def step(self, step, state, **known):
        """Die, or do the same."""
        if BAD_NODE.exists() and BAD_NODE.read_text() == os.environ["NODE_NAME"]:
            sys.stderr.write("NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.\n")
            sys.stderr.flush()
            os.abort()
        return super().step(step, state, **known)


rover_kf.Checkpointer = Breaking
sys.argv = sys.argv[1:]
spec = importlib.util.spec_from_file_location("sample", sys.argv[0])
sample = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sample)
wait_for = sample.Source.wait_for
sample.Source.wait_for = lambda *given: 0.0 if HURRY.exists() else wait_for(*given)
sample.main()
