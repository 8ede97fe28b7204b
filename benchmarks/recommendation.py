# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How good a recommendation is before the first run: throughput, host memory, a fleet's waste.

    python benchmarks/recommendation.py --traces DIR --out build/bench/recommendation.json

docs/recommendation.md says what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.recommendation_bench import cold_start, fleet, memory

PARTS = ("throughput", "memory", "fleet")


def main() -> None:
    """Measure the parts that are asked for and write them beside those of an earlier run.

    Configurations of memory that the file has are not measured again; remove it to have them all.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--traces", type=pathlib.Path, help="folder of measured step times")
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--configurations", type=int, help="of memory, the first so many")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("build/bench/recommendation.json")
    )
    given = parser.parse_args()
    report = json.loads(given.out.read_text()) if given.out.exists() else {}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for part in given.parts.split(","):
        if part == "throughput":
            if given.traces is None:
                print("throughput: left out, no --traces")
                continue
            report[part] = cold_start.measure(given.traces)
        elif part == "memory":
            known = report.get(part, {}).get("configurations", [])
            for found in memory.measure(memory.CONFIGURATIONS[: given.configurations], known):
                report[part] = found
                given.out.write_text(json.dumps(report, indent=1) + "\n")
        elif part == "fleet":
            report[part] = fleet.measure(given.traces)
        else:
            parser.error(f"--parts {part!r}; allowed: {', '.join(PARTS)}")
        given.out.write_text(json.dumps(report, indent=1) + "\n")
        print(part, json.dumps(_short(report[part])))


def _short(part: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in part.items() if key not in {"configurations", "generator"}}


if __name__ == "__main__":
    main()
