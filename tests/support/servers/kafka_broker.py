# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A real Kafka broker for tests: one node in KRaft mode, from Maven's packages, started by Java.

Without Java or Maven the tests that use it are skipped with the reason; with CI=true they fail.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import shutil
import subprocess
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from testcluster import settings
from testcluster.binaries import key_of, publish
from testcluster.commands import run

from tests.support.pods.checkpoint_pod import free_port
from tests.support.waiting import eventually

SOURCE = pathlib.Path(__file__).parent / "kafka"
_JAVA = (
    *("java", "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC"),
    "-XX:TieredStopAtLevel=1",  # it lives for seconds
)
_CLASSES = ("-Dlog4j2.configurationFile=log4j2.properties", "-cp", "jars/*")
_HOST = "127.0.0.1"
_CLUSTER = "cm92ZXIta2YtdGVzdHMtMQ"


def installed() -> pathlib.Path:
    """Folder with the broker's packages; made once a machine.

    Skips or fails the test where that is not possible.
    """
    lacking = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if lacking:
        reason = f"{' and '.join(lacking)} not on PATH: Kafka cannot be installed and run"
        if settings.in_ci():
            pytest.fail(reason)
        pytest.skip(reason)
    return _cached("kafka", ("pom.xml", "jars.sha256", "log4j2.properties"), _install)


def _node() -> pathlib.Path:
    """A formatted, empty node; formatting takes Java longer than copying its two files."""
    return _cached("kafka-node", ("pom.xml", "server.properties"), _format)


def _classes() -> tuple[str, ...]:
    """Java's option for a broker's classes as one had them loaded: half of a start's work."""
    java = run(["java", "--version"]).encode()
    folder = _cached("kafka-classes", ("pom.xml", "server.properties"), _archive, java)
    return (f"-XX:SharedArchiveFile={folder / 'classes.jsa'}",)


def _cached(
    name: str, made_of: Sequence[str], make: Callable[[pathlib.Path], None], more: bytes = b""
) -> pathlib.Path:
    key = key_of(*((SOURCE / part).read_bytes() for part in made_of), _CLUSTER, more)
    folder = settings.cache() / "bin" / f"{name}-{key}"
    if not folder.exists():
        partial = folder.with_suffix(f".{os.getpid()}.part")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        make(partial)
        publish(partial, folder)
    return folder


def _install(folder: pathlib.Path) -> None:
    jars, pom = folder / "jars", SOURCE / "pom.xml"
    words = ["mvn", "--batch-mode", "--quiet", "--strict-checksums", "--file", pom]
    run([*words, "dependency:copy-dependencies", f"-DoutputDirectory={jars}"])
    listed = (SOURCE / "jars.sha256").read_text().splitlines()
    found = [f"{_sha256(path)}  {path.name}" for path in jars.iterdir()]
    assert sorted(found) == sorted(listed), "Maven brought other packages than jars.sha256 names"
    shutil.copy(SOURCE / "log4j2.properties", folder)


def _format(folder: pathlib.Path) -> None:
    properties = folder / "first.properties"
    _configure(properties, folder / "data", (1, 2, 3), "")
    words = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", properties]
    run([*_JAVA, *_CLASSES, *words], cwd=installed())


def _archive(folder: pathlib.Path) -> None:
    """Start a broker, and have Java keep its classes when it ends."""
    home = folder / "broker"
    home.mkdir()
    broker = KafkaBroker(home, (f"-XX:ArchiveClassesAtExit={folder / 'classes.jsa'}",))
    broker.start()
    assert broker.process is not None
    broker.process.terminate()
    broker.process.wait(60)
    shutil.rmtree(home)


def _sha256(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _configure(
    path: pathlib.Path,
    data: pathlib.Path,
    ports: tuple[int, int, int],
    password: str,
    host: str = _HOST,
) -> None:
    plain, controller, sasl = (f"{host}:{port}" for port in ports)
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    own = {
        "log.dirs": data,
        "listeners": f"PLAINTEXT://{plain},CONTROLLER://{controller},SASL_PLAINTEXT://{sasl}",
        "controller.quorum.voters": f"1@{controller}",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{login} required user_trainer="{password}";'
        ),
    }
    lines = [f"{name}={value}\n" for name, value in own.items()]
    path.write_text((SOURCE / "server.properties").read_text() + "".join(lines))


class KafkaBroker:
    """One broker with its own data.

    Args:
        folder: for its files; empty.
        java: options of Java; those for a quick start if not given.
        host: address that it serves at.
    """

    def __init__(
        self, folder: pathlib.Path, java: Sequence[str] | None = None, *, host: str = _HOST
    ) -> None:
        self.folder = folder
        self._packages = installed()
        self._java = (*_JAVA, *(_classes() if java is None else java), *_CLASSES)
        ports = (free_port(), free_port(), free_port())
        self.address, self.sasl_address = (f"{host}:{port}" for port in (ports[0], ports[2]))
        self.password = uuid.uuid4().hex
        """Of the user ``trainer``, at the second address."""
        self.process: subprocess.Popen[bytes] | None = None
        self._properties = folder / "server.properties"
        self._log = folder / "broker.log"
        shutil.copytree(_node() / "data", folder / "data")
        _configure(self._properties, folder / "data", ports, self.password, host)

    def start(self) -> None:
        """Start it, or start it again with what it had; returns when it serves."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._properties)],
                cwd=self._packages,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        eventually(self._serves, within=90, what="the Kafka broker serves")

    def stop(self) -> None:
        """SIGKILL it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def admin(self) -> AdminClient:
        """A client that makes and changes topics."""
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Make a topic; it is there when this returns, for whoever asks."""
        wanted = NewTopic(topic, partitions, 1, config=dict(config or {}))
        admin = self.admin()
        for future in admin.create_topics([wanted]).values():
            future.result(30)
        # Made is what the controller has noted down; the broker hears of it from there.
        eventually(lambda: topic in self._topics(admin), what=f"the topic {topic}")

    def delete(self, topic: str) -> None:
        """Take a topic away; nobody sees it any more when this returns."""
        admin = self.admin()
        for future in admin.delete_topics([topic]).values():
            future.result(30)
        eventually(lambda: topic not in self._topics(admin), what=f"the end of the topic {topic}")

    def produce(
        self, topic: str, values: Sequence[bytes], *, partition: int, key: bytes | None = None
    ) -> None:
        """Append records, and wait until the broker has them."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5, "log_level": 0})
        for value in values:
            producer.produce(topic, value, key=key, partition=partition)
        assert producer.flush(60) == 0

    def _topics(self, admin: AdminClient) -> Collection[str]:
        return admin.list_topics(timeout=10).topics

    def _serves(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self._log.read_text()[-3000:]
        try:
            return bool(self.admin().list_topics(timeout=1).brokers)
        except KafkaException:
            return False


@contextlib.contextmanager
def kafka_broker(folder: pathlib.Path, *, host: str = _HOST) -> Iterator[KafkaBroker]:
    """A running broker; killed afterwards.

    Args:
        folder: for its files; empty.
        host: address of this machine that it serves at.
    """
    broker = KafkaBroker(folder, host=host)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
