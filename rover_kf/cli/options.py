# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Options that verbs share: where a command acts, which job and file, a dry run."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from rover_kf.client import RoverClient, settings
from rover_kf.client.manifests import parse_name
from rover_kf.client.settings import ClientSettings

P = ParamSpec("P")
T = TypeVar("T")

PATH = click.Path(path_type=pathlib.Path)
FILE = click.argument("file", metavar="JOB.yaml", type=PATH)
NAMESPACE = click.option("-n", "--namespace", default="default", show_default=True)
ONE_NAMESPACE = click.option("-n", "--namespace", help="Only of this namespace.")
REPORT = click.option("--report", type=PATH, help="Report to write, HTML.")
DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Show what would change, and create nothing."
)
DRY_RUN_OF_JOB = click.option(
    "--dry-run", is_flag=True, help="Show what would change of the job, and change nothing."
)


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Options of the group."""

    cluster: str | None = None
    state: pathlib.Path | None = None
    context: str | None = None

    def read_settings(self) -> ClientSettings:
        """Return the environment's settings, with the options over them."""
        return settings.read(state=self.state).with_overrides(self.cluster or "")

    def embedded(self) -> RoverClient:
        """A client of the embedded cluster, whatever the options say."""
        return RoverClient(config=self.read_settings())

    def client(self) -> RoverClient:
        """Return a client of the place that the options name; ClusterUnavailable without it."""
        return self._connect(self.cluster or "")

    def kubernetes(self) -> RoverClient:
        """A client of a Kubernetes cluster, whatever ``--on`` says; raises as client does."""
        return self._connect("kubernetes")

    def _connect(self, cluster: str) -> RoverClient:
        state = str(self.state) if self.state else ""
        return RoverClient.connect(cluster, state=state, context=self.context or "")


def with_client(verb: Callable[Concatenate[RoverClient, P], T]) -> Callable[P, T]:
    """Give a verb the client of the place that was asked for, as its first argument."""

    @click.pass_obj
    @functools.wraps(verb)
    def call(connection: ConnectionOptions, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with connection.client() as rover:
            return verb(rover, *args, **kwargs)

    return call


def with_job(verb: Callable[..., T]) -> Callable[..., T]:
    """Give a verb the ``key`` of the job that NAME and ``--namespace`` say."""

    @click.argument("name")
    @NAMESPACE
    @functools.wraps(verb)
    def call(*args: Any, name: str, namespace: str, **kwargs: Any) -> T:
        return verb(*args, key=parse_name(namespace, name), **kwargs)

    return call
