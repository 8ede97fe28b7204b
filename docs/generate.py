# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python docs/generate.py``: write the pages that ``documents`` lists.

A test compares the files with what this gives, so that they cannot fall behind.
"""

from __future__ import annotations

import collections
import json
import pathlib
import signal
import sys
from typing import Any

import click
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from controller.http_servers import HistoryMetrics
from rover_kf.api import event_reasons, names
from rover_kf.api.data import DataStatus, WorkerShare
from rover_kf.api.policy import policy_fields
from rover_kf.api.samples import Goodput
from rover_kf.api.status import CoordinatorStatus
from rover_kf.cli import exit_codes
from rover_kf.cli.main import cli
from rover_kf.elastic.failures import pods, processes
from rover_kf.elastic.failures.rule import Rule
from rover_kf.history.store import SqlHistory
from rover_kf.metrics import exporter
from rover_kf.reconcilers.reconciler import DecisionLatency

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.append(str(HERE))

import api_reference  # noqa: E402 - beside this file

from tests.support import failure_cases  # noqa: E402 - where the tests declare it
from tests.support.failure_cases import Case  # noqa: E402 - likewise

CATALOGUE = (
    "<!-- From here on made by docs/generate.py of rover_kf/elastic/failures, tests/support/"
    "failure_cases.py and chaos.json. -->\n"
)
NOTE = "<!-- Made by docs/generate.py; edit the source instead. -->\n"


def command_line() -> str:
    """Every command with its help, as the terminal shows it."""
    parts = [f"{NOTE}# Command line\n\n{_block(cli, 'rover-kf')}", _exit_codes()]
    stack = sorted(cli.commands.items())
    while stack:
        name, command = stack.pop(0)
        parts.append(f"## rover-kf {name}\n\n{_block(command, f'rover-kf {name}')}")
        if isinstance(command, click.Group):
            below = [(f"{name} {key}", value) for key, value in sorted(command.commands.items())]
            stack = below + stack
    return "\n".join(parts)


def _exit_codes() -> str:
    """What they mean, and what else holds for every verb."""
    rows = "".join(f"| {code} | {meaning} |\n" for code, meaning in exit_codes.MEANINGS.items())
    return (
        f"## Exit codes\n\n| code | meaning |\n|---|---|\n{rows}\n"
        "Errors go to standard error, one line each, and name what is allowed. Where no terminal "
        "is, output has no colours and does not move; `-o json` and `-o yaml` are for programs.\n"
    )


def _block(command: click.Command, path: str) -> str:
    context = click.Context(
        command,
        info_name=path,
        terminal_width=88,
        max_content_width=88,
        help_option_names=["-h", "--help"],
    )
    return f"```text\n{command.get_help(context)}\n```\n"


def rights() -> str:
    """What the controller and users may do, from the manifests."""
    head = ["\n| role | resources | names | verbs |", "|---|---|---|---|"]
    lines = [f"{NOTE}# Rights"]
    for title, path in _RIGHTS.items():
        lines += [f"\n## {title}", *head, *_rights_of(path)]
    return "\n".join(lines) + "\n"


_RIGHTS = {
    "The controller": "base/rbac/rbac.yaml",
    "The controller, with the component `cordon`": "components/cordon/rbac.yaml",
    "The controller, with the component `delete-lost`": "components/delete-lost/rbac.yaml",
    "The controller in one namespace alone (`overlays/namespaced`)": (
        "overlays/namespaced/rbac.yaml"
    ),
    "Users and steps of pipelines (`overlays/kubeflow`)": "overlays/kubeflow/roles.yaml",
}
"""Titles in docs/rbac.md by the file that a section is read from."""


def _rights_of(path: str) -> list[str]:
    """A line for each rule of a file of manifests."""
    lines = []
    text = (HERE.parent / "manifests" / path).read_text()
    for document in yaml.safe_load_all(text):
        for rule in document.get("rules") or []:
            groups = [group or "core" for group in rule["apiGroups"]]
            cells = (
                f"{document['kind']} `{document['metadata']['name']}`",
                ", ".join(f"{group}/{kind}" for group in groups for kind in rule["resources"]),
                ", ".join(rule.get("resourceNames", ["any"])),
                ", ".join(rule["verbs"]),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def policy() -> str:
    """Every annotation that a job may carry, from the policy's own fields."""
    lines = [
        f"{NOTE}# Policy annotations\n",
        "A job's wishes; a wrong key or value is refused at admission with what is allowed.",
        "They stand in the job's own `metadata.annotations`, not in those of its pods.\n",
        "| annotation | allowed | default |",
        "|---|---|---|",
    ]
    for key, field in policy_fields().items():
        allowed, default = field.metadata["rule"].help, _default(field.default)
        lines.append(f"| `{names.PREFIX}{key}` | {allowed} | {default} |")
    return "\n".join(lines) + "\n"


def _default(value: object) -> str:
    """A default as an annotation would state it: whole MiB as ``512Mi``."""
    if value is None or value == ():
        return ""
    whole = isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0
    return f"{value >> 20}Mi" if whole else str(value)


def events() -> str:
    """Every Event reason, from the registry."""
    lines = [
        f"{NOTE}# Events\n",
        "rover-kf writes these Events for a job.",
        "`kubectl describe` and `rover-kf events JOB` show them.",
        "A Warning needs attention, unless the last column states otherwise.\n",
        "| reason | type | meaning | what to do |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{each.reason}` | {each.type} | {each.meaning} | {each.action} |"
        for each in sorted(event_reasons.REASONS, key=lambda each: each.reason)
    ]
    return "\n".join(lines) + "\n"


def failures() -> str:
    """Catalogue and matrix of failures, below what is written by hand in the page itself."""
    page = HERE / "failures.md"
    parts = [page.read_text().partition(CATALOGUE)[0], CATALOGUE]
    for title, rules, declared in (
        ("Processes", processes.RULES, failure_cases.OF_PROCESSES),
        ("Pods", pods.RULES, failure_cases.PODS),
    ):
        parts += [f"\n## {title}\n\n", *_catalogue(rules, declared)]
    parts += ["\n## Matrix\n\n", *_matrix(json.loads((HERE / "chaos.json").read_text()))]
    return "".join(parts)


def _catalogue(rules: tuple[Rule, ...], declared: tuple[Case, ...]) -> list[str]:
    lines = [
        "| kind | known by | scope | action | what it is | brought about by |\n",
        "|---|---|---|---|---|---|\n",
    ]
    for one in rules:
        marks = "" if one.consumes_budget else "; free"
        marks += "; consequence" if one.consequence else ""
        marks += "; permanent if repeated" if one.permanent_if_repeated else ""
        cells = (
            f"`{one.kind}`",
            _known_by(one),
            one.scope,
            one.action + marks,
            one.message,
            _brought_about(one, declared),
        )
        lines.append(f"| {' | '.join(cells)} |\n")
    return lines


def _brought_about(rule: Rule, declared: tuple[Case, ...]) -> str:
    """How tests bring a row about, as they declare it, or what that would take."""
    tests: dict[str, list[str]] = {}
    for way in failure_cases.ways(rule.kind, rule.variant, declared):
        tests.setdefault(way.test, []).append(way.how)
    parts = [f"{', '.join(dict.fromkeys(hows))} ({test})" for test, hows in tests.items()]
    parts += [f"not here: it takes {rule.needs}"] * bool(rule.needs)
    parts += [f"words of {rule.source}"] * bool(rule.source)
    return "; ".join(parts)


def _matrix(found: dict[str, Any]) -> list[str]:
    """What a run of tests/cluster/test_chaos.py wrote, as a table."""
    runs = collections.Counter(
        f"`{fault['run']}` on {fault['date']}" for fault in found["faults"].values()
    )
    when = ", ".join(f"{run} ({count} fault{'s' * (count != 1)})" for run, count in runs.items())
    return [
        f"Seen by `pytest tests/cluster/test_chaos.py`: {when}.\n\n",
        "| fault | detected by | told as | action | all step again in | steps lost | seen on |\n",
        "| --- | --- | --- | --- | ---: | ---: | --- |\n",
        *(_overcome(name, fault) for name, fault in found["faults"].items()),
    ]


def _overcome(name: str, fault: dict[str, Any]) -> str:
    anew = f"a new round, from the last sealed step out of {fault['source']}"
    cells = (
        name,
        fault["noticed_by"],
        ", ".join(f"`{reason}`" for reason in fault["told"]) or "-",
        anew if fault["resumed"] else "none needed: it went on",
        f"{fault['seconds']:.1f} s",
        str(fault["steps_lost"]),
        fault["conditions"],
    )
    return f"| {' | '.join(cells)} |\n"


def _known_by(one: Rule) -> str:
    signals = sorted(-code for code in one.codes if code < 0)
    named = [signal.Signals(number).name for number in signals if number in set(signal.Signals)]
    every = len(named) > len(signal.Signals) // 2
    found = ["any other signal" if every else f"signal {', '.join(named)}"] * bool(named)
    found += [f"exit code {code}" for code in sorted(one.codes) if code >= 0]
    found += ["a kill for memory counted meanwhile"] * one.oom_killed
    for said, classes in (("exception", one.errors), ("exception or one before it", one.causes)):
        found += [f"{said}: {', '.join(sorted(classes))}"] * bool(classes)
    found += [f"reason {', '.join(sorted(one.reasons))}"] * bool(one.reasons)
    found += [f"text `{one.text}`".replace("|", "\\|")] * bool(one.text)
    found += [f"stderr `{one.logged}`".replace("|", "\\|")] * bool(one.logged)
    return "; ".join(found) or "nothing of the above"


def metrics() -> str:
    """Every series of sidecar and controller, as their own text tells of it."""
    share = WorkerShare("0/a", 1, 1)
    data = DataStatus("train", 0, 1, 1, 1, 1, 0, 1.0, eta_seconds=1.0, workers=(share,))
    status = CoordinatorStatus(
        "j", "training", 1, 1, 1, 1, 1, 1, 1, 1, 1.0, 0, (), Goodput(), (), 0.0, 0.0, data=(data,)
    )
    sidecar = exporter.render("p", "j", status, event_counts={}, storage=True).decode()
    registry = CollectorRegistry()
    with SqlHistory("sqlite://") as history:
        registry.register(HistoryMetrics(history))
        DecisionLatency(registry)
        controller = generate_latest(registry).decode()
    parts = [f"{NOTE}# Metrics\n", _METRICS]
    for title, text in (("Sidecars, port 7411", sidecar), ("Controller, port 8081", controller)):
        parts.append(f"\n## {title}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n")
        for family in text_string_to_metric_families(text):
            samples = [one for one in family.samples if not one.name.endswith("_created")]
            if not samples:
                continue
            labels = ", ".join(f"`{name}`" for name in samples[0].labels if name != "le")
            name = family.name if family.type == "histogram" else samples[0].name
            row = (f"`{name}`", family.type, labels, family.documentation)
            parts.append(f"| {' | '.join(row)} |\n")
    return "".join([*parts, _alerts(), _LOGS])


_METRICS = """Names, labels and meanings are kept: within a minor version series are only added.
The coordinator's sidecar tells of the job, every sidecar of itself; values are those of the moment
of the scrape. `rover_kf_events_total` begins anew with each coordinator, as counters may.

`manifests/components/monitoring` has PodMonitor, ServiceMonitor, PrometheusRule and a Grafana
dashboard for the Prometheus Operator. Without the operator take `spec.groups` of `rules.yaml` as a
rule file, scrape pods that have the label `training.kubeflow.org/job-name` on port 7411 with
`honor_labels: true`, and the controller as the job `rover-kf-controller`.

Where sidecars encrypt ([security](security.md#tls-between-sidecars)) the port is called `rover-tls`
in place of `rover` and is scraped by https. A namespace's sidecars have its name in their
certificate, and a scrape job verifies one name: the PodMonitor verifies none. To have it verified
make one for each namespace, with `tlsConfig.serverName: rover-kf.NAMESPACE.svc` and the authority
in `tlsConfig.ca`.
"""


_LOGS = """
## Log lines

Sidecars and the controller write one JSON object a line to standard error: `time` (RFC 3339, UTC),
`level`, `logger`, `message`; `job`, `namespace` and `pod` (a controller's: of the job that it
speaks of, with `kind`), `rank` where the message names one, `exception`. The variable
`ROVER_LOG_FORMAT=text` gives plain lines. Training processes log by Python's logger `rover_kf`, as
their script has set it up, with `RANK` in the environment.

## Traces

`rover-kf trace JOB` tells what a job's recoveries were made of as OpenTelemetry traces:

    pip install 'rover-kf[otel]'
    rover-kf trace JOB --endpoint http://collector:4318    # OTLP over HTTP, protobuf
    rover-kf trace JOB -o FILE                              # the same request, OTLP's JSON

A trace is one change of the job's world. Its root is `recovery`, or `planned change` where no
failure led to it, from what the coordinator saw first until every rank stepped; its status is an
error where the world ended before that, with the reason in `error.type`. Below it are
`rendezvous` (until the new world had formed), `restore` of each rank (until its state was back:
its process' start is part of it) and `first step`. What was told meanwhile stands at the root as
span events, by the names of the job's Events.

| attribute | of | meaning |
|---|---|---|
| `service.name`, `service.version` | resource | `rover-kf` and its version |
| `k8s.namespace.name`, `rover_kf.job.name`, `.kind`, `.uid` | resource | the job |
| `rover_kf.round` | root | number of the new world |
| `rover_kf.world_size`, `rover_kf.nodes` | root | its processes and pods |
| `rover_kf.restart_seconds` | root | as `rover_kf_restart_seconds` has it |
| `rover_kf.step` | root, restore | step that training went on from |
| `rover_kf.rank`, `k8s.pod.name` | restore | whose state it was |
| `rover_kf.checkpoint.source` | restore | `memory`, `peer` or `storage` |
| `rover_kf.message` | span event | the Event's message |

Times are those of the Events, so a rank's restore is by its own pod's clock. Ids are made from the
run, the round and its time: traces that are sent again are the same traces. What is under way is
left out. The run is read from the history (`ROVER_KF_HISTORY`) and from the coordinator while there
is one; of a run with more than 1,000 Events those changes are told whose end it still has.

OpenTelemetry's own exporter sends them, and tries for ten seconds. A token goes into
`OTEL_EXPORTER_OTLP_HEADERS`, an authority's certificate into `OTEL_EXPORTER_OTLP_CERTIFICATE`. A
redirect is not followed, but told as an error. Nothing is sent by itself; training processes,
sidecars and the controller have no part in it.

Log lines need nothing of this: a collector reads them as log records, their keys as attributes;
that was not tried here.
"""


def _alerts() -> str:
    """Each alert with its rule."""
    folder = HERE.parent / "manifests" / "components" / "monitoring"
    rules = yaml.safe_load((folder / "rules.yaml").read_text())["spec"]["groups"][0]["rules"]
    rows = [
        f"| {one['alert']} | {one['labels']['severity']} | `{one['expr']}` | "
        f"{one.get('for', '0s')} | "
        f"{one['annotations']['description']} |\n"
        for one in rules
    ]
    head = "\n## Alerts\n\n| alert | severity | fires when | for | then |\n|---|---|---|---|---|\n"
    return head + "".join(rows)


def main() -> None:
    """Write the files."""
    for name, text in documents().items():
        (HERE / name).write_text(text)


def documents() -> dict[str, str]:
    """Text by file name."""
    return {
        "api.md": f"{NOTE}{api_reference.page()}",
        "cli.md": command_line(),
        "failures.md": failures(),
        "metrics.md": metrics(),
        "policy.md": policy(),
        "rbac.md": rights(),
        "reference/events.md": events(),
    }


if __name__ == "__main__":
    main()
