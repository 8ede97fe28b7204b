# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller costs and how soon it decides, with thousands of jobs.

``make bench-controller`` writes build/bench/controller.json. The API server, the scheduler and the
Training Operator are real, nodes and pods are simulated by KWOK, and a server on the simulated
pods' addresses stands in for their coordinators. All of it runs in a network namespace of its own.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "tests" / "cluster"))

from testcluster import binaries, pki, releases, settings
from testcluster.processes import Registry

from benchmarks.controller_bench import network_namespace, run
from benchmarks.controller_bench.control_plane import Plane

_INSIDE = "--inside"


def main() -> None:
    """Measure, write, print."""
    given = _options()
    if not given.inside:
        binaries.build(releases.find())
        binaries.compiled(binaries.SIMULATOR)
        with network_namespace.made():
            words = [*network_namespace.enter(), sys.executable, __file__, *sys.argv[1:], _INSIDE]
            sys.exit(subprocess.run(words, check=False).returncode)
    report = _measured(given)
    if given.add and given.out.exists():
        report = json.loads(given.out.read_text()) | report
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(_with_webhook(report), indent=1) + "\n")
    print(f"written to {given.out}")


def _measured(given: argparse.Namespace) -> dict[str, Any]:
    root = settings.cache() / "controller-bench"
    shutil.rmtree(root, ignore_errors=True)
    registry = Registry(root / "processes", root / "log")
    found = binaries.build(releases.find())
    found["kwok"] = binaries.compiled(binaries.SIMULATOR) / "kwok"
    pki.create(root, 0)
    try:
        return run.run(
            Plane(root, found, registry),
            sizes=[int(word) for word in given.jobs.split(",")],
            window=given.window,
            windows=given.windows,
            rate=given.rate,
            brief=given.brief,
        )
    finally:
        registry.stop(registry.all())
        if not given.keep:
            shutil.rmtree(root, ignore_errors=True)


def _with_webhook(report: dict[str, Any]) -> dict[str, Any]:
    """With what the webhook took while jobs were fewest: creations beside a load that is usual."""
    sizes = [key for key in report if key.isdigit() and run.WEBHOOK_KEYS[0] in report[key]]
    fewest = report[min(sizes, key=int)] if sizes else {}
    return report | {key: fewest[key] for key in run.WEBHOOK_KEYS if key in fewest}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default="1000,5000", help="how many, ascending")
    parser.add_argument("--window", type=float, default=60.0, help="seconds of a window")
    parser.add_argument("--windows", type=float, default=4.0, help="windows that are measured")
    parser.add_argument("--rate", type=float, default=50.0, help="creations a second")
    parser.add_argument("--add", action="store_true", help="keep other sizes that --out has")
    parser.add_argument("--brief", action="store_true", help="neither webhook nor restart")
    parser.add_argument("--keep", action="store_true", help="leave logs where they are")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("build/bench/controller.json")
    )
    parser.add_argument(_INSIDE, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
