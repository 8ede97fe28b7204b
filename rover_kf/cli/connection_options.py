# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Where a command acts: the options before the verb, made into a client."""

from __future__ import annotations

import dataclasses
import pathlib

from rover_kf.client import RoverClient, settings
from rover_kf.client.settings import ClientSettings


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Options of the group."""

    cluster: str | None = None
    state: pathlib.Path | None = None
    context: str | None = None

    def read_settings(self) -> ClientSettings:
        """The environment's settings with the options over them.

        Raises:
            InputError: a variable has a value that is not allowed.
        """
        return settings.read(state=self.state).with_overrides(self.cluster or "")

    def embedded(self) -> RoverClient:
        """A client of the embedded cluster, whatever the options say."""
        return RoverClient(config=self.read_settings())

    def client(self) -> RoverClient:
        """A client of the place that was asked for.

        Raises:
            ClusterUnavailable: there is no such cluster.
        """
        state = str(self.state) if self.state else ""
        return RoverClient.connect(self.cluster or "", state=state, context=self.context or "")

    def kubernetes(self) -> RoverClient:
        """A client of a Kubernetes cluster, whatever ``--on`` says.

        Raises:
            ClusterUnavailable: there is no such cluster.
        """
        state = str(self.state) if self.state else ""
        return RoverClient.connect("kubernetes", state=state, context=self.context or "")
