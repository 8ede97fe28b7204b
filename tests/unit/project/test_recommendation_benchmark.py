# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of recommendations on tables so small that it takes seconds: what it writes."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from tests.support.simulated import step_tables

REPOSITORY = pathlib.Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Three programs and a workload of two of them, on nodes of four."""
    folder = tmp_path_factory.mktemp("tables")
    for name, speed in (("short", 1.0), ("long", 2.0), ("other", 4.0)):
        epochs = {32: [1500 if name == "short" else 12000], 64: [2000]}
        step_tables.write(folder, name, epochs=epochs, speed=speed)
    jobs = [(f"job-{i}", 90 * i, ("short", "long")[i % 2], 1 + i % 3, 32) for i in range(8)]
    step_tables.write_workload(folder, "workload-1", jobs)
    sizes = {"short": 4e6, "long": 4e6, "other": 4e6}
    (folder / "parameters.json").write_text(json.dumps(sizes), encoding="utf-8")
    return folder


def run(script, *words, out, code=0):
    """A benchmark as ``make`` runs it: what it wrote, and what it said."""
    line = [sys.executable, f"benchmarks/{script}.py", *map(str, words), "--out", str(out)]
    ended = subprocess.run(
        line, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == code, ended.stderr[-2000:]
    return json.loads(out.read_text(encoding="utf-8")), ended.stdout + ended.stderr


def test_recommendation_writes_what_is_read(tables, tmp_path):
    """Throughput and a fleet; ours wastes less than users do."""
    parts = ("--traces", tables, "--parts", "throughput,fleet")
    found, _ = run("recommendation", *parts, out=tmp_path / "recommendation.json")
    throughput, fleet = found["throughput"], found["fleet"]
    assert set(throughput["models"]) == {"short", "long", "other"}
    assert throughput["median"]["5-16"] < throughput["perfect_scaling"]["5-16"]
    assert fleet["recommended"]["waste"] < fleet["users"]["waste"]
