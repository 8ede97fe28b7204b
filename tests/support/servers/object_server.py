# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A real S3 server for tests: versitygw, compiled once, its objects in files below a folder.

Without Go the tests that use it are skipped with the reason; with CI=true they fail.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator

import pytest
from testcluster import settings
from testcluster.binaries import OBJECT_SERVER, compiled

from tests.support.pods.checkpoint_pod import free_port
from tests.support.waiting import eventually

_IN_SMALL_MEMORY = (
    'mount -t tmpfs -o "size=$1" tmpfs "$2" && mkdir "$2/data" "$2/data/checkpoints" "$2/meta" '
    '&& shift 2 && exec "$@"'
)


def binary() -> pathlib.Path:
    """The server's program; skips or fails the test where it cannot be compiled."""
    if shutil.which("go") is None:
        reason = "Go is not on PATH: the S3 server of these tests cannot be compiled"
        if settings.in_ci():
            pytest.fail(reason)
        pytest.skip(reason)
    return compiled(OBJECT_SERVER) / "versitygw"


class ObjectServer:
    """One server with one bucket, ``checkpoints``.

    Args:
        folder: for its files; empty.
        most_bytes: that its disk has; 0: as many as the folder's. Needs root or user namespaces.
        address: where it listens.
        pair: files of a certificate and its key, by which it speaks TLS as localhost; none: plain.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        most_bytes: int = 0,
        address: str = "127.0.0.1",
        pair: tuple[pathlib.Path, ...] = (),
    ) -> None:
        self.folder, self.address = folder, address
        self.key, self.secret = f"key{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._most_bytes, self._pair = most_bytes, pair
        if not most_bytes:
            (folder / "data" / "checkpoints").mkdir(parents=True)
            (folder / "meta").mkdir()

    @property
    def bucket(self) -> pathlib.Path:
        """The bucket's objects as files, by their keys."""
        return self.folder / "data" / "checkpoints"

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": f"https://localhost:{self.port}"
            if self._pair
            else f"http://{self.address}:{self.port}",
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        """Start it, or start it again with what it had; returns when it answers."""
        program = [
            str(binary()), "--port", f"{self.address}:{self.port}", "--quiet",
            "--access-log", str(self.folder / "requests"),
            *self._tls(),
            "posix", "--sidecar", str(self.folder / "meta"), str(self.folder / "data"),
        ]  # fmt: skip
        if self._most_bytes:
            own = ["--user", "--map-root-user"] if os.getuid() else []
            size, folder = str(self._most_bytes), str(self.folder)
            program = [
                "unshare", *own, "--mount",
                "sh", "-c", _IN_SMALL_MEMORY, "sh", size, folder, *program,
            ]  # fmt: skip
        names = {"ROOT_ACCESS_KEY": self.key, "ROOT_SECRET_KEY": self.secret}
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                program, env=os.environ | names, stdout=log, stderr=subprocess.STDOUT
            )
        eventually(self._answers, what="the S3 server answers")

    def stop(self) -> None:
        """SIGKILL it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It accepts connections meanwhile, but answers nothing; it may be stopped meanwhile."""
        process = self.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def unfinished(self) -> int:
        """How many uploads were begun and neither completed nor aborted."""
        return len(list((self.bucket / ".sgwtmp" / "multipart").glob("*/*")))

    def asked(self) -> list[str]:
        """What it was asked, such as ``GetObject``, request by request; by its log of them."""
        return re.findall(r" s3_(\w+) ", (self.folder / "requests").read_text())

    def _tls(self) -> list[str]:
        if not self._pair:
            return []
        certificate, key = map(str, self._pair)
        return ["--cert", certificate, "--key", key]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 1):
            return True
        assert self.process is not None
        assert self.process.poll() is None, "the S3 server ended; its log stands beside its folder"
        return False


@contextlib.contextmanager
def object_server(
    folder: pathlib.Path,
    *,
    most_bytes: int = 0,
    address: str = "127.0.0.1",
    pair: tuple[pathlib.Path, ...] = (),
) -> Iterator[ObjectServer]:
    """A running server; killed afterwards."""
    folder.mkdir(parents=True)
    server = ObjectServer(folder, most_bytes=most_bytes, address=address, pair=pair)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def offer(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process, and those that it starts, be the server's clients."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
