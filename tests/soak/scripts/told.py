# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a sample script unchanged; every rank tells each restore and each finished step.

``told.py digits.py --steps 100``: lines ``soak stepped|restored <step> <rank> <world size> <round>
<process> <Unix seconds> <source>``. A step is told when ``Checkpointer.step`` is through with it,
so a step whose save was cut short is not among them.
"""

import os
import runpy
import sys
import time

import rover_kf


def tell(what, step, source):
    """Write one line in one write: lines of several processes must not mix."""
    variables = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "ROVER_ROUND"))
    words = ("soak", what, step, *variables, os.getpid(), f"{time.time():.3f}", source)
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Told(rover_kf.Checkpointer):
    """The same, telling."""

    def restore(self, state):
        """Restore, then tell."""
        step = super().restore(state)
        tell("restored", step, self.restored_from)
        return step

    def step(self, step, state, **known):
        """Do the same, then tell; a drain leaves by SystemExit after the step was saved."""
        try:
            super().step(step, state, **known)
        except SystemExit:
            tell("stepped", step, "-")
            raise
        tell("stepped", step, "-")


rover_kf.Checkpointer = Told
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
