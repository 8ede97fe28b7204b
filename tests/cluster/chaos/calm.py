# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The same training on this machine, to which nothing happens."""

from __future__ import annotations

import os
import pathlib
import subprocess

from testcluster import host_python, jobs, settings

from chaos import journal
from chaos.journal import Line


def train(folder: pathlib.Path, ranks: int, steps: int) -> list[Line]:
    """What so many ranks of the digits sample write down.

    Args:
        folder: for their journal.
        ranks: of the world.
        steps: that they make.
    """
    python = host_python.torch_environment() / "bin" / "python"
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone"]
    script = [jobs.TOOLS / "journaled.py", jobs.SAMPLES / "digits.py", "--steps", str(steps)]
    environment = {
        **os.environ,
        "JOURNAL": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(settings.REPOSITORY),
    }
    done = subprocess.run(
        [python, *launch, *script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return journal.read(folder)
