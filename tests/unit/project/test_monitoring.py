# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - expressions and series are longer than a line
"""Rules, dashboard and monitors speak of series and ports that there are; promtool tries rules."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

from rover_kf.injection.inject import inject
from rover_kf.injection.settings import InjectionSettings
from tests.support.jobs.job_manifests import make_job, pod_of

ROOT = pathlib.Path(__file__).parents[3]
MONITORING = ROOT / "manifests" / "components" / "monitoring"
GROUPS = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]
RULES = GROUPS["groups"][0]["rules"]
KNOWN = set(
    re.findall(r"^\| `(rover_kf_\w+)`", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
)
BY = 'namespace="team", job="digits"'


@pytest.fixture(scope="module")
def promtool():
    program = shutil.which("promtool")
    assert program, "install prometheus: python3 tests/cluster/testcluster/packages.py"
    return program


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def series(name, values, labels=BY):
    return {"series": f"{name}{{{labels}}}", "values": values}


# What is there minute by minute, when the alert is looked for, and when it is gone again.
CASES = {
    "RoverKfControllerDown": ([series("up", "1x9 0x9 1x30", 'job="rover-kf-controller"')], 17, 21),
    "RoverKfHang": ([series("rover_kf_events_total", "0x9 1x40", f'{BY}, reason="Hang"')], 12, 27),
    "RoverKfCheckpointLag": (
        [
            series("rover_kf_storage", "1x100"),
            series("rover_kf_sealed_step", "10+10x100"),
            series("rover_kf_durable_step", "0+10x9 90x49 600+10x40"),
        ],
        45,
        65,
    ),
    "RoverKfGoodputLow": (
        [
            series(
                "rover_kf_goodput_seconds",
                "0+55x60 3300+6x90 3840+58x90",
                f'{BY}, bucket="productive"',
            ),
            series(
                "rover_kf_goodput_seconds", "0+5x60 300+54x90 5160+2x90", f'{BY}, bucket="recovery"'
            ),
            series("rover_kf_goodput_seconds", "0+60x240", f'{BY}, bucket="waiting"'),
        ],
        148,
        239,
    ),
    "RoverKfRestartStorm": ([series("rover_kf_restarts_total", "0x5 0+1x5 5x60")], 15, 45),
    "RoverKfReplicaMismatch": (
        [series("rover_kf_events_total", "0x9 1x40", f'{BY}, reason="ReplicaMismatch"')],
        12,
        27,
    ),
    "RoverKfHistoryUnavailable": (
        [series("rover_kf_history_available", "1x5 0x20 1x10", "")],
        18,
        27,
    ),
}


def test_every_alert_fires_and_clears(promtool, tmp_path):
    """As it is written, with its times: promtool makes up the series."""
    assert set(CASES) == {rule["alert"] for rule in RULES}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(GROUPS))
    run(promtool, "check", "rules", tmp_path / "rules.yaml")
    tests = []
    for rule in RULES:
        made, fires, clear = CASES[rule["alert"]]
        tests += [
            {
                "interval": "1m",
                "input_series": made,
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{rule["alert"]}", alertstate="firing"}}) or vector(0)',
                        "eval_time": f"{minute}m",
                        "exp_samples": [{"labels": "{}", "value": value}],
                    }
                    for minute, value in ((1, 0), (fires, 1), (clear, 0))
                ],
            }
        ]
    whole = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(whole))
    print(run(promtool, "test", "rules", tmp_path / "tests.yaml"))
    print(f"{len(RULES)} alerts fire and clear")


def used(expression):
    return set(re.findall(r"\brover_kf_\w+", expression))


def test_rules_and_dashboard_use_series_that_there_are(promtool, tmp_path):
    """Each expression is PromQL, and names nothing that no sidecar or controller tells."""
    board = json.loads((MONITORING / "dashboard.json").read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    for expression in (*shown, *(rule["expr"] for rule in RULES)):
        assert used(expression) <= KNOWN, expression
    rules = [{"record": f"shown:{n}", "expr": text} for n, text in enumerate(shown)]
    (tmp_path / "shown.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "shown", "rules": rules}]})
    )
    run(promtool, "check", "rules", tmp_path / "shown.yaml")
    queries = [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    assert all(used(query) - {"rover_kf_sidecar_up"} == set() for query in queries)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    print(
        f"{len(shown)} expressions of {len(board['panels'])} panels, {len(RULES)} rules, {len(KNOWN)} series"
    )


def test_the_monitors_find_the_ports():
    """By the names that injected pods and the controller's Deployment give them."""
    pods, service, controller = yaml.safe_load_all((MONITORING / "scrape.yaml").read_text())
    plain, encrypted = pods["spec"]["podMetricsEndpoints"]
    for endpoint, policy in ((plain, {}), (encrypted, {"tls.secret": "certificate"})):
        job = inject(make_job(policy=policy), settings=InjectionSettings("image")).manifest
        items = pod_of(job)["initContainers"]
        assert [one["name"] for item in items for one in item.get("ports", ())] == [
            endpoint["port"]
        ]
    assert (plain.get("scheme"), encrypted["scheme"]) == (None, "https")
    deployment = yaml.safe_load((ROOT / "manifests/base/controller/deployment.yaml").read_text())
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    named = {one["name"] for one in template["spec"]["containers"][0]["ports"]}
    assert {service["spec"]["ports"][0]["targetPort"]} <= named
    assert (
        controller["spec"]["selector"]["matchLabels"].items()
        <= service["metadata"]["labels"].items()
    )
    assert controller["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
