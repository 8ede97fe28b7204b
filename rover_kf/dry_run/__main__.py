# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m rover_kf.dry_run ORDERS.json``: run the script, write the finding."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from rover_kf.dry_run import messages as files
from rover_kf.dry_run import script
from rover_kf.dry_run.messages import DryRunRequest, DryRunResult
from rover_kf.dry_run.model_size import LiveTensors
from rover_kf.dry_run.step_limit import LoaderRecorder, StepLimitReached, StepRecorder


def run_dry_run(request: DryRunRequest) -> DryRunResult:
    """Run the script until its steps are made or it ends; what was seen."""
    loaders = LoaderRecorder(request.batch_factor, in_process=request.fake)
    steps = StepRecorder(request, loaders)
    error = ""
    with _fake_mode(request) as counter, loaders.watch(), steps.watch(counter):
        try:
            script.parse_command(request.command).run()
        except StepLimitReached:
            pass
        except SystemExit as end:
            error = f"it ended by itself with {end.code!r}" if end.code else ""
        except Exception as cause:  # noqa: BLE001 - whatever a user's script raises is the finding
            lines = str(cause).strip().splitlines() or ["no message"]
            error = f"{type(cause).__name__}: {lines[0]}"
    found = steps.make_result(error)
    if not found.error and not found.steps:
        return steps.make_result("it ended without a step of an optimizer of torch")
    return found


@contextlib.contextmanager
def _fake_mode(request: DryRunRequest) -> Iterator[LiveTensors | None]:
    """Fake tensors with a count of them, if that is ordered."""
    if not request.fake:
        yield None
        return
    # Only here: it loads half of the compiler.
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

    with FakeTensorMode(allow_non_fake_inputs=True), LiveTensors(answers=True) as counter:
        yield counter


def main() -> None:
    """Read the orders that the first argument names."""
    told = files.read_request(sys.argv[1])
    files.write(told.result, run_dry_run(told))
    sys.stdout.flush()
    # Threads and workers of the script, wherever it was ended, are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
