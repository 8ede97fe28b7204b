# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf recommend``: sizes for a job, and why. Nothing is created by it."""

from __future__ import annotations

import pathlib
from typing import Any

import click
import yaml

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.decisions import Recommendation
from rover_kf.cli import recommendation_text
from rover_kf.cli.connection_options import ConnectionOptions
from rover_kf.cli.output import print_parts
from rover_kf.client.scripts.script_dry_run import DryRun
from rover_kf.injection import quantities
from rover_kf.recommender.constraints import Constraints
from rover_kf.recommender.price import PriceTable

FORMATS = ("table", "json", "yaml")


@click.command()
@click.argument("file", metavar="JOB.yaml", type=click.Path(path_type=pathlib.Path))
@click.option("-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.option("--dry-run", is_flag=True, help="Run the job's script here for a few steps first.")
@click.option("--fake", is_flag=True, help="Dry run with shapes only: a model too large for here.")
@click.option("--batch-option", default="", help="The script's argument for its batch.")
@click.option("--steps", default=6, show_default=True, help="Of a dry run, at each batch.")
@click.option("--prices", type=click.Path(path_type=pathlib.Path), help="YAML of an hour's prices.")
@click.option("--max-replicas", type=click.IntRange(1), help="Worker replicas at most.")
@click.option("--max-cpu", help="Of one replica, such as 4 or 500m.")
@click.option("--max-memory", help="Of one replica, such as 16Gi.")
@click.option("--accelerator-memory", help="Of one device, such as 16Gi.")
@click.option("--network", help="Bytes a second between two nodes, such as 10G.")
@click.option("--parameters", help="Of the model, such as 7G, where nothing else tells.")
@click.option("--trained", help="Of these parameters, those that are trained (LoRA), such as 20M.")
@click.option("--value-of-time", default=2.0, show_default=True, help="2 minds cost, 8 a deadline.")
@click.pass_obj
def recommend(connection: ConnectionOptions, /, file: pathlib.Path, **given: Any) -> None:
    """Say which sizes to ask for, how sure that is, why, and what they cost."""
    prices = PriceTable.read(given["prices"]) if given["prices"] else None
    tried = None
    if given["dry_run"] or given["fake"]:
        tried = DryRun(given["steps"], batch_option=given["batch_option"], fake=given["fake"])
    limits = Constraints(
        max_replicas=given["max_replicas"],
        max_cpu=_parse_amount("--max-cpu", given["max_cpu"]),
        max_memory=_parse_amount("--max-memory", given["max_memory"]),
        accelerator_memory=_parse_amount("--accelerator-memory", given["accelerator_memory"]),
        network_bytes_per_second=_parse_amount("--network", given["network"]),
        value_of_time=given["value_of_time"],
    )
    with connection.client() as rover:
        found = rover.recommend(
            file,
            dry_run=tried,
            constraints=limits,
            prices=prices,
            parameters=_parse_amount("--parameters", given["parameters"]),
            trained=_parse_amount("--trained", given["trained"]),
        )
    _print_recommendation(found, "json" if given["as_json"] else given["output"])


def _print_recommendation(recommendation: Recommendation, form: str) -> None:
    if form == "json":
        click.echo(codec.dumps(recommendation).decode())
    elif form == "yaml":
        click.echo(
            yaml.safe_dump(codec.encode(recommendation), sort_keys=False, width=100), nl=False
        )
    else:
        print_parts(*recommendation_text.render_recommendation(recommendation))


def _parse_amount(option: str, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        found = float(quantities.parse(value))
    except ValueError as cause:
        raise errors.InputError(f"{option} is {value!r}; allowed: such as 500m or 4Gi") from cause
    if found <= 0:
        raise errors.InputError(f"{option} is {value!r}; allowed: more than 0")
    return found


VERBS = (recommend,)
