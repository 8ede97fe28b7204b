# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Entry of ``rover-run``: torchrun's command line, in a pod of ours or anywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rover_kf import errors
from rover_kf.api import names
from rover_kf.launcher import arguments, settings
from rover_kf.launcher.agent import Agent, log_line


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit code.

    Outside a pod of ours (ROVER_HOME is not set) the process becomes torchrun itself, so that
    rover-run can stand in every command.
    """
    command = list(sys.argv[1:] if argv is None else argv)
    try:
        known = settings.read(os.environ)
    except errors.InputError as error:
        log_line(str(error))
        return names.EXIT_USAGE
    if known.shared_dir is None:
        log_line(f"{names.ENV_HOME} is not set, so this is no pod of rover-kf: torchrun takes over")
        torchrun = [sys.executable, "-m", "torch.distributed.run", *command]
        os.execv(sys.executable, torchrun)  # noqa: S606 - becoming torchrun is the purpose
    try:
        launch = arguments.parse(command, known.inherited)
    except errors.InputError as error:
        log_line(str(error))
        return names.EXIT_USAGE
    if launch.ignored:
        options = ", ".join(f"--{option}" for option in launch.ignored)
        log_line(f"no effect here, the coordinator forms the world: {options}")
    return Agent(launch, known, known.shared_dir).run()


if __name__ == "__main__":
    sys.exit(main())
