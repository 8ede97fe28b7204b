# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a sample script unchanged; on the node that the file ``bad-node`` names, GPUs are broken.

``breaking.py digits.py --steps 100``: there, each training process ends at its next step as one
does whose GPU has fallen off the bus.
"""

import os
import pathlib
import sys

import wrapped

import rover_kf

BAD_NODE = pathlib.Path("/checkpoints/bad-node")


class Breaking(rover_kf.Checkpointer):
    """The same, until its node is the bad one."""

    def step(self, step, state, **known):
        """Die, or do the same."""
        if BAD_NODE.exists() and BAD_NODE.read_text() == os.environ["NODE_NAME"]:
            sys.stderr.write("NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.\n")
            sys.stderr.flush()
            os.abort()
        return super().step(step, state, **known)


wrapped.run(Breaking)
