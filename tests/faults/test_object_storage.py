# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An S3 server that refuses, hangs, is full or gone; writers that are killed or stale."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import obstore
import pytest
from obstore import store

from rover_kf import errors
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.manifest import Manifest
from rover_kf.checkpoint.storage.bucket import Timeouts
from rover_kf.checkpoint.storage.object_store import ObjectStorage
from rover_kf.checkpoint.storage.retention import RetentionExceptions
from tests.support.pods.checkpoint_pod import free_port
from tests.support.servers.object_server import binary, object_server, offer
from tests.support.states import identities
from tests.support.tls.authority import Authority
from tests.support.waiting import eventually

# The first fixture may compile the server: that has a limit of its own.
pytestmark = pytest.mark.timeout(300, func_only=True)

# For who is not answered. Whoever is may have to wait for a busy disk.
SHORT = Timeouts(connect_seconds=1.0, part_seconds=1.0, small_seconds=1.0, retries=1)
URL = "s3://checkpoints/faults/demo"

HALF_WRITER = """
import sys
from rover_kf.api.states import RoundId, State
from rover_kf.checkpoint.storage.object_store import ObjectStorage
def content():
    for number in range(100):
        if number == 60:
            print("half", flush=True)
            sys.stdin.read()
        yield memoryview(bytes(1 << 20))
storage = ObjectStorage(sys.argv[1])
folder = storage.folder(State(RoundId(0, 1), int(sys.argv[2])))
storage.write_rank(folder, 0, content(), 100 << 20)
"""

LARGE_WRITER = """
import pathlib, re, sys
from rover_kf.api.states import RoundId, State
from rover_kf.checkpoint.storage.object_store import ObjectStorage
storage = ObjectStorage(sys.argv[1])
one, two = (storage.folder(State(RoundId(0, 1), step)) for step in (1, 2))
storage.write_rank(one, 0, [memoryview(bytes(9 << 20))], 9 << 20)
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
before = peak()
buffer = memoryview(bytearray(4 << 20))
storage.write_rank(two, 0, (buffer for _ in range(64)), 256 << 20)
print((peak() - before) >> 10)
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with object_server(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


@pytest.fixture
def _client(running, monkeypatch):
    offer(running, monkeypatch)


@pytest.fixture
def server(running, _client):
    return running


def _write(storage: ObjectStorage, step: int, size: int = 3000) -> Manifest:
    def content() -> Iterator[memoryview]:
        for begin in range(0, size, 1 << 20):
            yield memoryview(bytes(min(1 << 20, size - begin)))

    file = storage.write_rank(storage.folder(identities.state(step)), 0, content(), size)
    return Manifest(
        "",
        identities.state(step),
        identities.state(step),
        world_size=1,
        replicated=True,
        files=(file,),
    )


def _written(storage: ObjectStorage, step: int, size: int) -> Manifest | None:
    with contextlib.suppress(errors.StorageError):
        return _write(storage, step, size)
    return None


def _refusal(storage: ObjectStorage, size: int = 3000) -> str:
    """The same words for writing, listing and tidying; nothing of the request in them."""
    told = []
    for call in (
        lambda: _write(storage, 1, size),
        storage.complete_folders,
        lambda: storage.collect(1, current=identities.round_id(1)),
    ):
        with pytest.raises(errors.StorageError) as refused:
            call()
        assert refused.value.__cause__ is None
        assert len(str(refused.value)) < 500
        told.append(str(refused.value))
    return "\n".join(told)


@pytest.mark.usefixtures("_client")
def test_a_missing_bucket_is_named():
    """Make it, or correct the path."""
    told = _refusal(ObjectStorage("s3://no-such-bucket/demo"))
    assert told.count("NoSuchBucket") == 3
    assert told.count("make the bucket, or correct rover-kf.io/checkpoint.path") == 3


@pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_denied_access_names_the_secret_but_nothing_of_it(server, monkeypatch, wrong):
    """Neither key nor signature nor what was sent."""
    monkeypatch.setenv(wrong, "wrong-value-of-a-key")
    told = _refusal(ObjectStorage(URL))
    assert told.count("check the Secret that rover-kf.io/checkpoint.secret names") == 3
    for hidden in ("wrong-value-of-a-key", server.key, server.secret, "Signature=", "AWS4-HMAC"):
        assert hidden not in told


@pytest.mark.usefixtures("server")
def test_a_wrong_region_is_told_as_that(monkeypatch):
    """The server's own sentence, without its escapes, and which variable it is about."""
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    told = _refusal(ObjectStorage(URL))
    assert told.count('the region "eu-west-1" is wrong; expecting "us-east-1"') == 3
    assert told.count("AWS_REGION has to be the bucket's region; correct it in the Secret") == 3


@pytest.mark.usefixtures("server")
def test_half_of_a_key_is_asked_for_whole(monkeypatch):
    """As where one of the two was forgotten in the Secret."""
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert _refusal(ObjectStorage(URL)).count("no usable credentials: give them in the Secret") == 3


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
def test_a_newline_after_a_value_is_no_part_of_it(server, monkeypatch, variable):
    """As of a Secret that was made of files, or by echo and base64."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, f"{value}\n")
    monkeypatch.setenv(variable, os.environ["AWS_ENDPOINT_URL"])
    if variable != "AWS_ENDPOINT_URL":
        monkeypatch.delenv("AWS_ENDPOINT_URL")
    storage = ObjectStorage(f"s3://checkpoints/newline/{variable}")
    folder = storage.write_manifest(_write(storage, 2))
    storage.collect(1, current=identities.round_id(1))
    assert storage.complete_folders() == (folder,)


@pytest.mark.usefixtures("_client")
@pytest.mark.parametrize("wrong", ["minio.minio:9000", "127.0.0.1", "s3://checkpoints"])
def test_an_endpoint_that_is_no_url_is_named(monkeypatch, wrong):
    """Not passed on to the client, which ends the process for it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", wrong)
    told = _refusal(ObjectStorage(URL, SHORT))
    assert told.count("AWS_ENDPOINT_URL is no URL such as https://s3.example.org") == 3


@pytest.mark.usefixtures("_client")
@pytest.mark.parametrize("size", [3000, 20 << 20])
def test_what_the_client_panics_at_is_a_refusal(monkeypatch, size):
    """A key that was broken in two lines: said, but not shown."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "broken\nkey")
    told = _refusal(ObjectStorage(URL, SHORT), size)
    assert told.count("has a character that it may not have, such as a line break") == 3
    assert "broken" not in told


@pytest.mark.usefixtures("_client")
def test_a_server_that_is_gone_names_the_endpoint(monkeypatch):
    """Nobody listens there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    told = _refusal(ObjectStorage(URL, SHORT))
    assert told.count("no answer; check the endpoint (AWS_ENDPOINT_URL)") == 3


@pytest.mark.parametrize("size", [3000, 20 << 20])
def test_a_server_that_hangs_is_given_up_in_time_and_used_when_it_is_back(server, size):
    """Connections are accepted, nothing is answered: an error within the patience, not for ever."""
    storage = ObjectStorage(f"s3://checkpoints/frozen/{size}", SHORT)
    with server.frozen():
        begun = time.monotonic()
        assert _refusal(storage, size).count("no answer") == 3
        seconds = time.monotonic() - begun
    print(f"three calls given up in {seconds:.1f} s")
    assert seconds < 3 * 2 * SHORT.part_seconds + 5
    ObjectStorage(URL).complete_folders()  # It has caught up with what was asked of it meanwhile.
    storage.write_manifest(_write(storage, 1, size))
    assert storage.verify(storage.complete_folders()[-1]).state.step == 1


def test_a_full_disk_is_an_error_and_what_was_durable_stays(tmp_path, monkeypatch):
    """Too large a state is refused; a small one fits afterwards: it was given up in earnest.

    This server keeps parts that come after their upload was given up, four at most, and needs twice
    the room of an object for a moment. Of the large state itself nothing else fits beside them.
    """
    with object_server(tmp_path / "small", most_bytes=56 << 20) as small:
        offer(small, monkeypatch)
        storage = ObjectStorage(URL)
        first = storage.write_manifest(_write(storage, 1, 1 << 20))
        brief = ObjectStorage(URL, SHORT)
        with pytest.raises(errors.StorageError) as refused:
            _write(brief, 2, 120 << 20)
        print(refused.value)
        assert storage.complete_folders() == (first,)
        # Parts that were on their way when the upload was given up take room for a moment.
        content = eventually(lambda: _written(brief, 3, 9 << 20), within=60)
        second = storage.write_manifest(content)
        assert storage.complete_folders() == (first, second)
        assert storage.verify(first).state.step == 1


@pytest.mark.usefixtures("_client")
def test_of_two_coordinators_one_has_its_way():
    """The same state with other files: refused, the first one stays."""
    storage = ObjectStorage("s3://checkpoints/two/demo")
    content = _write(storage, 4)
    folder = storage.write_manifest(dataclasses.replace(content, saved_at=1.0))
    assert storage.write_manifest(dataclasses.replace(content, saved_at=2.0)) == folder
    with pytest.raises(errors.StorageError, match="another coordinator"):
        storage.write_manifest(dataclasses.replace(content, world_size=2))
    assert storage.load(folder) == dataclasses.replace(content, saved_at=1.0)


def test_a_ranks_file_costs_as_many_requests_however_many_ranks_there_are(server):
    """Of 2,500 ranks each would list the files of all, in three pages."""
    storage = ObjectStorage("s3://checkpoints/many/demo")
    _write(storage, 1)
    folder = storage.folder(identities.state(2))
    there = server.bucket / "many" / "demo" / folder.name
    there.mkdir()
    for rank in range(2500):
        (there / manifest.file_name(rank)).write_bytes(b"written")
    before = len(server.asked())
    file = storage.write_rank(folder, 2500, [memoryview(b"the last")], 8)
    again = storage.write_rank(folder, 2500, [memoryview(b"once more")], 9)
    asked = eventually(lambda: server.asked()[before + 6 :] and server.asked()[before:])
    assert asked == ["GetObject"] + ["PutObject"] * 2 + ["GetObject"] + ["PutObject"] * 3
    assert (file.name, again.name) == (
        "rank-02500.safetensors",
        "rank-02500-2.safetensors",
    )
    assert len(storage.sizes(folder)) == 2502


class Unconditional(http.server.BaseHTTPRequestHandler):
    """In front of the server, as one that has no conditional writes."""

    protocol_version = "HTTP/1.1"
    behind = 0
    """Port of the server."""
    refused = 0

    def _pass(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "If-None-Match" in self.headers:
            type(self).refused += 1
            said = b"<Error><Code>NotImplemented</Code><Message>A header</Message></Error>"
            self._answer(501, said, {})
            return
        server = http.client.HTTPConnection("127.0.0.1", self.behind)
        server.request(self.command, self.path, content, dict(self.headers))
        reply = server.getresponse()
        self._answer(reply.status, reply.read(), dict(reply.getheaders()))
        server.close()

    do_GET = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815 - their names

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name in headers.keys() - {"Content-Length", "Transfer-Encoding", "Date", "Connection"}:
            self.send_header(name, headers[name])
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""


def test_a_server_without_conditional_writes_is_looked_at_first(server, monkeypatch):
    """Nothing ever became durable there; a manifest that is there is not replaced even so."""
    monkeypatch.setattr(Unconditional, "behind", server.port)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Unconditional) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.server_port}")
        storage = ObjectStorage("s3://checkpoints/unconditional/demo")
        folders = []
        for step in (1, 2):
            content = _write(storage, step)
            folders.append(storage.write_manifest(content))
            with pytest.raises(errors.StorageError, match="another coordinator"):
                storage.write_manifest(dataclasses.replace(content, world_size=2))
        proxy.shutdown()
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.environment["AWS_ENDPOINT_URL"])
    there = ObjectStorage("s3://checkpoints/unconditional/demo")
    assert [there.verify(folder).state.step for folder in folders] == [1, 2]
    print(f"asked {Unconditional.refused} times with a condition")
    assert Unconditional.refused < 10


def test_retention_asks_for_what_is_new_alone(server):
    """However many stay: one listing and one manifest a commit; one that was replaced is read."""
    storage, every = ObjectStorage("s3://checkpoints/long/demo"), RetentionExceptions(every=1)
    for step in range(1, 9):
        storage.write_manifest(_write(storage, step))
    assert storage.collect(1, current=identities.round_id(1), spare=every) == ()
    for step in (9, 10):
        storage.write_manifest(_write(storage, step))
        before = len(server.asked())
        assert storage.collect(1, current=identities.round_id(1), spare=every) == ()
        asked = eventually(lambda at=before: server.asked()[at + 1 :] and server.asked()[at:])
        assert asked == ["ListObjectsV2", "GetObject"]
    key, client = (
        f"{storage.folder(identities.state(4)).name}/{manifest.NAME}",
        store.from_url(storage.url, client_options={"allow_http": True}),
    )
    damaged = bytes(obstore.get(client, key).bytes()).replace(b"4", b"5")
    obstore.put(client, key, damaged)
    assert [
        folder.step for folder in storage.collect(1, current=identities.round_id(1), spare=every)
    ] == [4]


def test_what_a_killed_writer_left_is_no_checkpoint(server):
    """Its upload is no object and costs room until the bucket's own rule ends it. The empty object
    that held its name is removed with what else older rounds have left."""
    url = "s3://checkpoints/killed/demo"
    storage, before = ObjectStorage(url), server.unfinished()
    storage.write_manifest(_write(storage, 3))
    for step in (5, 9):
        command = [sys.executable, "-c", HALF_WRITER, url, str(step)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
            assert writer.stdout.readline() == b"half\n"
            writer.kill()
    assert server.unfinished() == before + 2
    assert [folder.step for folder in storage.complete_folders()] == [3]
    for step in (5, 9):
        assert set(storage.sizes(storage.folder(identities.state(step))).values()) == {0}
    storage.collect(3, current=identities.round_id(1))
    storage.write_manifest(_write(storage, 6))
    storage.collect(3, current=identities.round_id(2))
    assert [folder.step for folder in storage.complete_folders()] == [3, 6]
    assert [folder.step for folder in storage.folders()] == [3, 6]


@pytest.mark.usefixtures("_client")
def test_an_upload_is_streamed():
    """256 MiB pass through a process that grows by a few parts only."""
    command = [sys.executable, "-c", LARGE_WRITER, "s3://checkpoints/large/demo"]
    grown = int(subprocess.run(command, check=True, capture_output=True).stdout)
    print(f"256 MiB were uploaded in {grown} MiB of memory")
    assert grown < 100


def test_a_servers_own_authority_is_asked_for_and_taken(tmp_path, monkeypatch):
    """As of a MinIO within a cluster. That its certificate is not trusted is no silence; once its
    authority is named all is as ever."""
    authority = Authority()
    for name, content in authority.secret("localhost").items():
        (tmp_path / name).write_text(content)
    pair = tmp_path / "tls.crt", tmp_path / "tls.key"
    url = "s3://checkpoints/tls/demo"
    with object_server(tmp_path / "tls", pair=pair) as server:
        offer(server, monkeypatch)
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        told = _refusal(ObjectStorage(url, SHORT))
        assert told.count("the server's certificate is not trusted") == 3
        assert told.count("SSL_CERT_FILE") == 3
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
        storage = ObjectStorage(url)
        folder = storage.write_manifest(_write(storage, 2))
        storage.collect(1, current=identities.round_id(1))
        assert storage.complete_folders() == (folder,)


@pytest.mark.usefixtures("_client")
def test_an_unknown_host_is_named_as_that(monkeypatch):
    """A typing error in the endpoint; of a name this long the resolver knows it by itself."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{'minio' * 20}.invalid:9000")
    assert _refusal(ObjectStorage(URL, SHORT)).count("no such host; check the endpoint") == 3


@pytest.mark.usefixtures("_client")
def test_no_credentials_at_all_name_the_secret(monkeypatch):
    """The client looks for the machine's own account, which is not there; so it is said."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    told = _refusal(ObjectStorage(URL, SHORT))
    assert told.count("no usable credentials: give them in the Secret") == 3


@pytest.mark.parametrize("url", ["az://container/demo", "gs://bucket/demo"])
def test_a_store_that_cannot_be_opened_is_a_refusal_like_others(monkeypatch, url):
    """Azure without an account, Google with a key that is none; what the key was is not told."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "{a broken key")
    told = _refusal(ObjectStorage(url, SHORT))
    assert told.count("cannot be opened") == told.count("no usable credentials") == 3
    assert "a broken key" not in told


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip), ("true", pytest.fail)])
def test_without_go_these_tests_are_skipped_but_not_in_ci(monkeypatch, ci, outcome):
    """With the reason."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome.Exception, match="Go is not on PATH"):
        binary()
