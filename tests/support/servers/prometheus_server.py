# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus with the project's own rules; its clock's minutes may be made seconds."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import yaml

from tests.support.pods.checkpoint_pod import free_port
from tests.support.waiting import eventually

MONITORING = pathlib.Path(__file__).parents[3] / "manifests" / "components" / "monitoring"
EVALUATED = 30.0
"""Seconds between two evaluations, as the Prometheus Operator has it."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RANGE = re.compile(r"\[(\d+)([smhd])\]")


class Prometheus:
    """A server that runs.

    Args:
        address: of its API.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str) -> Any:
        """What a path of the API answers."""
        with urllib.request.urlopen(f"{self._address}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def firing(self) -> set[tuple[str, str]]:
        """Alerts that fire now, each with its namespace."""
        return {
            (alert["labels"]["alertname"], alert["labels"].get("namespace", ""))
            for alert in self.ask("alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def up(self) -> int:
        """Targets whose last scrape went well."""
        return sum(one["health"] == "up" for one in self.ask("targets")["activeTargets"])


def scrape_of(kind: str, *, encrypted: bool = False) -> dict[str, Any]:
    """The endpoint of the project's PodMonitor or ServiceMonitor, for jobs that encrypt or not."""
    documents = yaml.safe_load_all((MONITORING / "scrape.yaml").read_text())
    (monitor,) = [one["spec"] for one in documents if one["kind"] == kind]
    endpoints = monitor.get("podMetricsEndpoints") or monitor["endpoints"]
    (endpoint,) = (one for one in endpoints if ("scheme" in one) is encrypted)
    return dict(endpoint)


def scrape_config(
    name: str, kind: str, found: Mapping[str, Any], *, hurry: float
) -> dict[str, Any]:
    """What the Prometheus Operator would make of a monitor.

    Args:
        name: of the scrape job.
        kind: of the monitor.
        found: how targets are found, and what else is to be set.
        hurry: by how much all times are shortened.
    """
    endpoint = scrape_of(kind)
    seconds = _seconds(endpoint["interval"]) / hurry
    return {
        "job_name": name,
        "metrics_path": endpoint["path"],
        "scrape_interval": _text(seconds),
        "scrape_timeout": _text(seconds),
        "honor_labels": endpoint.get("honorLabels", False),
        **found,
    }


def rules(*, hurry: float) -> dict[str, Any]:
    """The groups of the project's rules, each range and each ``for`` shortened by that much."""
    groups = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]["groups"]
    for rule in groups[0]["rules"]:
        rule["expr"] = _RANGE.sub(
            lambda found: f"[{_text(int(found[1]) * _SECONDS[found[2]] / hurry)}]", rule["expr"]
        )
        if "for" in rule:
            rule["for"] = _text(_seconds(rule["for"]) / hurry)
    return {"groups": groups}


@contextlib.contextmanager
def prometheus(
    folder: pathlib.Path, scraped: Sequence[Mapping[str, Any]], *, hurry: float
) -> Iterator[Prometheus]:
    """A server while the block runs.

    Args:
        folder: where it keeps all.
        scraped: its scrape configurations.
        hurry: by how much times of rules and evaluations are shortened.
    """
    if shutil.which("prometheus") is None:
        reason = "no prometheus: python3 tests/cluster/testcluster/packages.py"
        if os.environ.get("CI"):
            pytest.fail(f"alerts must be tried in CI: {reason}")
        pytest.skip(reason)
    every = _text(EVALUATED / hurry)
    whole = {
        "global": {"evaluation_interval": every, "scrape_interval": every, "scrape_timeout": every},
        "rule_files": ["rules.yaml"],
        "scrape_configs": list(scraped),
    }
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules(hurry=hurry)))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(whole))
    listening = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yaml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={listening}",
                f"--query.lookback-delta={_text(300 / hurry)}",
            ],
            stdout=log,
            stderr=log,
        )
    made = Prometheus(f"http://{listening}")

    def serves() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        with contextlib.suppress(urllib.error.URLError):
            return bool(made.ask("rules")["groups"])
        return False

    try:
        eventually(serves, within=60, what="Prometheus serves")
        yield made
    finally:
        process.terminate()
        process.wait(30)


def _seconds(text: str) -> float:
    return float(text[:-1]) * _SECONDS[text[-1]]


def _text(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
