# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How Kafka's brokers are reached. Secrets are named here, and read where a connection is made."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Mapping

from rover_kf import errors

_SECRET = re.compile(r"password|secret|key\.pem|sasl\.oauthbearer\.config|sasl\.jaas")
_RESERVED = {
    "bootstrap.servers": "give brokers",
    "group.id": "give group",
    "enable.auto.commit": "offsets are committed with durable checkpoints",
    "auto.offset.reset": "give start and on_lost",
    "enable.partition.eof": "it shows where a partition ends",
    "enable.auto.offset.store": "offsets are committed with durable checkpoints",
}
_ENVIRONMENT, _FILE = "env:", "file:"


@dataclasses.dataclass(frozen=True)
class KafkaConnection:
    """To one Kafka; may be handed to other processes and be logged: it holds no secret.

    Args:
        brokers: ``host:port``, several separated by commas.
        group: consumer group under which used offsets are committed, for other tools to see.
        options: of librdkafka, such as ``{"security.protocol": "SASL_SSL"}``.
        secrets: options whose values must not stand in a script, by where they are:
            ``{"sasl.password": "env:KAFKA_PASSWORD"}`` or ``"file:/var/run/secrets/kafka"``.

    Raises:
        InputError: an option is one that must not be given; the message says which and why.
    """

    brokers: str
    group: str
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what would be ignored, or be seen by who must not."""
        if not (self.brokers and self.group):
            raise errors.InputError("Kafka needs brokers ('host:port') and a consumer group's name")
        for name in self.options:
            if name in _RESERVED:
                raise errors.InputError(f"leave out the option {name}: {_RESERVED[name]}")
            if _SECRET.search(name):
                raise errors.InputError(
                    f"{name} is a secret: name its place instead, secrets={{{name!r}: 'env:NAME'}} "
                    "or 'file:/path' of a mounted Secret"
                )
        for name, place in self.secrets.items():
            if not place.startswith((_ENVIRONMENT, _FILE)):
                raise errors.InputError(
                    f"the place of the secret {name} must be 'env:NAME' or 'file:/path'"
                )

    def configuration(self) -> dict[str, str]:
        """All options with their secrets, as of now (a mounted Secret may have been renewed).

        Raises:
            InputError: a secret is not where it should be.
        """
        found = {name: _secret(name, place) for name, place in self.secrets.items()}
        return {**self.options, **found, "bootstrap.servers": self.brokers}


def _secret(name: str, reference: str) -> str:
    if reference.startswith(_ENVIRONMENT):
        variable = reference.removeprefix(_ENVIRONMENT)
        if variable not in os.environ:
            raise errors.InputError(
                f"the environment variable {variable}, which has {name}, is not set; take it from "
                "a Secret in the pod's env (valueFrom.secretKeyRef)"
            )
        return os.environ[variable]
    path = pathlib.Path(reference.removeprefix(_FILE))
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except OSError as cause:
        raise errors.InputError(
            f"{path}, which has {name}, cannot be read: {cause.strerror}; mount the Secret there"
        ) from cause
