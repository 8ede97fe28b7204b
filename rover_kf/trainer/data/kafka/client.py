# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The Kafka client: loaded when it is needed, its errors told apart, its outages waited for."""

from __future__ import annotations

import importlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rover_kf import errors
from rover_kf.trainer.data.kafka.broker_connection import KafkaConnection

_log = logging.getLogger("rover_kf")


_FIRST_WARNING_SECONDS, _LAST_WARNING_SECONDS = 2.0, 60.0


class BrokerOutage:
    """A record of brokers that do not answer: it warns soon, then ever more rarely."""

    def __init__(self, brokers: str, now: Callable[[], float] = time.monotonic) -> None:
        self._brokers, self._now = brokers, now
        self._since: float | None = None
        self._pause = _FIRST_WARNING_SECONDS
        self.reason = ""
        """What the client said last."""

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
    """A consumer and requests of one process; a fork needs another one."""

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
        """Return offsets of partitions, as an ``OffsetSpec`` of each requests them.

        Raises:
            KafkaException: the client's own; for ``patient``.
        """
        tp, level = self.library.TopicPartition, self.library.IsolationLevel.READ_COMMITTED
        asked = {tp(topic, number): spec for (topic, number), spec in partitions.items()}
        answers = self.admin.list_offsets(
            asked, isolation_level=level, request_timeout=_REQUEST_SECONDS
        )
        return {(at.topic, at.partition): told.result().offset for at, told in answers.items()}

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the identifiers that brokers gave topics at their creation.

        Raises:
            KafkaException: the client's own; for ``patient``.
        """
        asked = self.library.TopicCollection(sorted(topics))
        told = self.admin.describe_topics(asked, request_timeout=_REQUEST_SECONDS)
        return {name: str(one.result().topic_id) for name, one in told.items()}

    def partitions(self, topic: str) -> list[int]:
        """Return the numbers of a topic's partitions; none: there is no such topic.

        Raises:
            KafkaException: the client's own; for ``patient``.
        """
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
