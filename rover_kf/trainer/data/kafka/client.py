# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The Kafka client: loaded when it is needed, its errors told apart, its outages waited for."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import math
import os
import pathlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

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
    """A connection to one Kafka, as picklable and loggable data without secrets.

    See KafkaDataset for the fields. Other tools see used offsets under ``group``.

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


_log = logging.getLogger("rover_kf")
_FIRST_WARNING_SECONDS, _LAST_WARNING_SECONDS = 2.0, 60.0


class BrokerOutage:
    """A record of brokers that do not answer: it warns soon, then ever more rarely."""

    def __init__(self, brokers: str, now: Callable[[], float] = time.monotonic) -> None:
        self._brokers, self._now = brokers, now
        self._since: float | None = None
        self._pause = _FIRST_WARNING_SECONDS
        self.reason = ""

    @property
    def is_active(self) -> bool:
        """Whether nothing has come for some time."""
        since = self._since
        return since is not None and self._now() - since > _FIRST_WARNING_SECONDS

    def report_waiting(self, what: str) -> None:
        """Note that nothing came; called every now and then."""
        now = self._now()
        if self._since is None:
            self._since = now
        waited = now - self._since
        if waited >= self._pause:
            _log.warning(
                "rover-kf: Kafka's brokers %s have not answered for %.0f s (%s); %s waits",
                *(self._brokers, waited, self.reason or "no error was told", what),
            )
            self._pause = waited + min(max(waited, _FIRST_WARNING_SECONDS), _LAST_WARNING_SECONDS)

    def end(self) -> None:
        """Note that something came."""
        if self._since is not None and self._pause > _FIRST_WARNING_SECONDS:
            seconds = self._now() - self._since
            _log.warning("rover-kf: Kafka's brokers %s are back, %.0f s", self._brokers, seconds)
        self._since, self._pause, self.reason = None, _FIRST_WARNING_SECONDS, ""


if TYPE_CHECKING:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient


T = TypeVar("T")
_REQUEST_SECONDS, _PAUSE_SECONDS = 5.0, 0.2


def load(module: str = "confluent_kafka") -> Any:
    """Import the client's module.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise errors.InputError(
            "to read from Kafka the image that trains needs a client: pip install confluent-kafka "
            f"(or rover-kf[kafka]); {cause}"
        ) from cause


class KafkaClient:
    """A consumer and requests of one process; a fork needs another one.

    Calls for ``request`` raise the client's own KafkaException.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self.connection = connection
        self.library: Any = load()
        self.outage = BrokerOutage(connection.brokers)
        self._admin: AdminClient | None = None
        self._refused: Any = None
        """What a broker told that did not take this user: an error only before training begins."""

    def consumer(self, more: Mapping[str, object]) -> confluent_kafka.Consumer:
        """Return a consumer that assigns partitions to itself and commits nothing.

        Raises:
            InputError: an option that the client does not know, or a secret that is not there.
        """
        own = {
            "group.id": self.connection.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",  # never silently somewhere else
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
        made: confluent_kafka.Consumer = self._create(self.library.Consumer, {**own, **more})
        return made

    def _create(self, kind: Callable[[dict[str, object]], T], more: Mapping[str, object]) -> T:
        configuration = {"log_level": 0, "reconnect.backoff.max.ms": 2000}
        given = self.connection.configuration()
        try:
            return kind({**configuration, **more, **given, "error_cb": self._on_error})
        except self.library.KafkaException as cause:
            text = str(cause)
            for name in self.connection.secrets:
                text = text.replace(given[name], "***")
            # Not chained: its own text may quote a secret.
            raise errors.InputError(f"Kafka's client does not take its options: {text}") from None

    def _on_error(self, error: Any) -> None:
        self.outage.reason = error.str()
        codes = (self.library.KafkaError._AUTHENTICATION, self.library.KafkaError._SSL)  # noqa: SLF001 - public names of the client
        self._refused = error if error.code() in codes else None

    def request_once(self, call: Callable[[], T]) -> T | None:
        """Send one request; None if the brokers do not answer.

        Raises:
            StreamLost: the answer is a refusal.
        """
        answered, found = self._attempt(call, "offsets")
        if answered:
            self.outage.end()
        else:
            self.outage.report_waiting("looking for new records")
        return found

    def request(self, what: str, call: Callable[[], T], patience: float) -> T:
        """Retry a request until the brokers answer.

        Warnings name ``what`` waits for it. No answer within ``patience`` seconds, which may be
        infinite, is an error.

        Raises:
            StreamLost: the answer is a refusal, or there is none in time.
        """
        begun = time.monotonic()
        while True:
            answered, found = self._attempt(call, what)
            if answered:
                self.outage.end()
                return cast("T", found)
            if self._refused is not None and math.isfinite(patience):
                self.check(self._refused, what)
            if time.monotonic() - begun > patience:
                raise errors.StreamLost(
                    f"no broker of {self.connection.brokers} answers ({self.outage.reason}): "
                    f"{what} has been waited for {patience:.0f} s; look at the brokers, and at "
                    "the address"
                )
            self.outage.report_waiting(what)
            time.sleep(_PAUSE_SECONDS)

    def _attempt(self, call: Callable[[], T], what: str) -> tuple[bool, T | None]:
        try:
            return True, call()
        except self.library.KafkaException as cause:
            error = cause.args[0]
            self.outage.reason = error.str()
            if self._admin is not None:
                self._admin.poll(0)  # has what the connection itself told come to _told
            self.check(error, what)
            # Its next one looks leaders up anew: this one may hold on to what was before an outage.
            self._admin = None
            return False, None

    def check(self, error: Any, what: str) -> None:
        """Accept an error that may pass with time.

        Raises:
            StreamLost: it is a refusal.
        """
        kafka = self.library.KafkaError
        refusals = {
            kafka._AUTHENTICATION,  # noqa: SLF001 - public names of the client, as all of these
            kafka._SSL,  # noqa: SLF001
            kafka.SASL_AUTHENTICATION_FAILED,
            kafka.TOPIC_AUTHORIZATION_FAILED,
            kafka.GROUP_AUTHORIZATION_FAILED,
            kafka.CLUSTER_AUTHORIZATION_FAILED,
            kafka._UNKNOWN_TOPIC,  # noqa: SLF001
            kafka._UNKNOWN_PARTITION,  # noqa: SLF001
            kafka.UNKNOWN_TOPIC_OR_PART,
            kafka.UNKNOWN_TOPIC_ID,
        }
        if error.fatal() or error.code() in refusals:
            raise errors.StreamLost(
                f"Kafka at {self.connection.brokers} refuses {what}: {error.str()} "
                f"({error.name()}); look at the topic, and at the rights of this user"
            )

    def offsets(self, partitions: Mapping[tuple[str, int], Any]) -> dict[tuple[str, int], int]:
        """Return offsets of partitions, as an ``OffsetSpec`` of each requests them."""
        tp, level = self.library.TopicPartition, self.library.IsolationLevel.READ_COMMITTED
        asked = {tp(topic, number): spec for (topic, number), spec in partitions.items()}
        answers = self.admin.list_offsets(
            asked, isolation_level=level, request_timeout=_REQUEST_SECONDS
        )
        return {(at.topic, at.partition): told.result().offset for at, told in answers.items()}

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the identifiers that brokers gave topics at their creation."""
        asked = self.library.TopicCollection(sorted(topics))
        told = self.admin.describe_topics(asked, request_timeout=_REQUEST_SECONDS)
        return {name: str(one.result().topic_id) for name, one in told.items()}

    def partitions(self, topic: str) -> list[int]:
        """Return the numbers of a topic's partitions; none: there is no such topic."""
        found = self.admin.list_topics(topic, timeout=_REQUEST_SECONDS).topics[topic]
        missing = (self.library.KafkaError.UNKNOWN_TOPIC_OR_PART,)
        if found.error is not None and found.error.code() not in missing:
            raise self.library.KafkaException(found.error)
        return sorted(found.partitions) if found.error is None else []

    @property
    def admin(self) -> AdminClient:
        """For questions; made when first asked for."""
        if self._admin is None:
            self._admin = self._create(load("confluent_kafka.admin").AdminClient, {})
        return self._admin
