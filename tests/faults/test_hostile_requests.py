# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that mean no good, over real sockets to a real sidecar: refused, and without effect.

One coordinator's sidecar for all of it: each test ends with the certainty that it still serves its
own pod, that the job is what it was, and that it has taken no memory worth the name.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import pathlib
import random
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rover_kf.api import names
from rover_kf.api.status import Ack, CoordinatorStatus
from tests.support.malformed_messages import (
    DEEP,
    as_bytes,
    damaged,
    messages,
    plain,
    rubbish,
)
from tests.support.pods.sidecar_pods import TOKEN, SidecarPod, ended, job_folder

LIMIT = 1.0
"""Seconds that this sidecar gives a body, and a connection that says nothing."""
QUICK = (
    "from rover_kf.sidecar.http import app; "
    f"app.BODY_SECONDS = app.IDLE_SECONDS = {LIMIT}; "
    "from rover_kf.sidecar.__main__ import main; import sys; sys.exit(main())"
)
POSTED = {
    names.PATH_JOIN: "JoinRequest", names.PATH_WATCH: "WatchRequest",
    names.PATH_LEAVE: "LeaveRequest", names.PATH_FAILURE: "Failure",
    names.PATH_FINISH: "FinishRequest", names.PATH_STACKS: "StackReport",
    names.PATH_PREFLIGHT: "CheckRequest", names.PATH_SAMPLES: "StepReport",
    names.PATH_DATA_REGISTER: "RegisterData", names.PATH_DATA_LEASE: "LeaseRequest",
    names.PATH_DATA_PROGRESS: "ProgressRequest", names.PATH_COMMIT_SEALED: "SlotSealed",
    names.PATH_COMMIT_DURABLE: "RankPersisted", names.PATH_COMMIT_RESOLVE: "RestoreStepRequest",
    names.PATH_COMMIT_WAIT: "WaitRequest", names.PATH_REPLICATE: "ReplicateRequest",
    names.PATH_REPLICATED: "Replicated", names.PATH_COMMIT_NAMED: "PersistOrderRequest",
    names.PATH_COMMIT_GIVEN_UP: "PersistAborted", names.PATH_COMMIT_LEFT: "PodEnded",
    names.PATH_REPLICA_DIGEST: "ReplicaDigest", names.PATH_EVENTS: "Event",
    names.PATH_STATE: "CoordinatorState", names.PATH_SCALE: "ScaleRequest",
    names.PATH_ABSENT: "UnavailablePodsRequest", names.PATH_PODS: "PodAddresses",
    names.PATH_LOST: "ServerLostRequest", names.PATH_KEPT: "StoredReplicasRequest",
}  # fmt: skip
LOCAL = {
    names.PATH_ARENA: "ArenaRequest", names.PATH_SEALED: "SlotSealed",
    names.PATH_RESTORE: "RestoreRequest", names.PATH_WAIT: "WaitRequest",
    names.PATH_HELD: "RestorableStepsRequest",
}  # fmt: skip
GOOD = f"Bearer {TOKEN}"
WRONG = {
    "none": None, "empty": "", "another": "Bearer nonsense", "scheme": f"Basic {TOKEN}",
    "shorter": GOOD[:-1], "longer": GOOD + "x", "letters": b"Bearer t\xc3\xb6k\xffn",
    "jwt": "Bearer e30.e30.e30", "long": "Bearer " + "x" * 7000, "no space": f"Bearer{TOKEN}",
}  # fmt: skip


class Quick(SidecarPod):
    """The real sidecar with shorter limits of time; nothing else differs."""

    def begin(self, environment: Mapping[str, str], errors: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", QUICK], env=environment, stderr=errors)


def peak_of(pod: SidecarPod) -> int:
    """Bytes that its process had at most since it was asked last."""
    assert pod.process is not None
    home = pathlib.Path(f"/proc/{pod.process.pid}")
    lines = (home / "status").read_text().splitlines()
    (home / "clear_refs").write_text("5")
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


@pytest.fixture(scope="module")
def sidecar():
    with job_folder() as (folder, net):
        pod = Quick(folder, 0, f"{net}.1", f"{net}.1")
        with ended(pod):
            yield pod.start().ready()


@pytest.fixture(autouse=True)
def harmless(sidecar):
    """Whatever a test sends."""
    before, _ = sidecar.status(), peak_of(sidecar)
    yield
    after, peak = sidecar.status(), peak_of(sidecar)
    for field in (
        "expected_nodes",
        "nodes",
        "round",
        "events",
        "step",
        "sealed_step",
        "durable_step",
    ):
        assert getattr(after, field) == getattr(before, field), field
    assert sidecar.ask(names.PATH_HEALTH, None, Ack) == Ack()
    assert peak < 400 << 20
    print(f"peak {peak >> 20} MiB")


def speak(sidecar, data: bytes, *, within=10.0) -> bytes:
    """Send bytes as they are; what comes back until the sidecar closes, or b"" if it just does."""
    with socket.create_connection((sidecar.address, names.PORT), timeout=within) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        found = b""
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(1 << 16):
                found += more
        return found


def request(path, body=b"{}", authorization: str | bytes | None = GOOD, more=b"") -> bytes:
    """A request's bytes."""
    told = authorization.encode() if isinstance(authorization, str) else authorization
    lines = [f"POST {path} HTTP/1.1".encode(), b"Host: x", b"Connection: close"]
    lines += [] if told is None else [b"Authorization: " + told]
    lines += [more] * bool(more) or [f"Content-Length: {len(body)}".encode()]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def code(answer: bytes) -> int:
    """Of an answer; 0 if there was none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


@pytest.mark.parametrize("name", sorted(WRONG))
def test_without_the_token_nothing_is_done(sidecar, name):
    """On no path but the three that only tell, and with any method."""
    paths = (
        *POSTED,
        names.PATH_COORDINATOR,
        f"{names.PATH_SLOTS}/0/0-1-1-1",
        "/v1/x",
        names.PATH_HISTORY,
    )
    for path in paths:
        body = b'{"nodes": 3, "reason": "x", "ranks": [0]}'
        assert code(speak(sidecar, request(path, body, WRONG[name]))) == 401, path
    for path in (names.PATH_HEALTH, names.PATH_METRICS, names.PATH_STATUS):
        assert code(speak(sidecar, request(path, b"", WRONG[name]))) in (401, 405), path
    print(f"{len(paths) + 3} paths refused with the token {name!r}")


def test_who_may_only_look_replaces_no_coordinator(sidecar):
    """The status is open: what its headers say of a newer coordinator counts for nothing."""
    for header in (names.GENERATION_HEADER, names.COPY_HEADER, names.POD_HEADER):
        for value in ("9" * 17, "9" * 4000, "99999999999999999.1", "²", "-1"):
            more = f"{header}: {value}".encode()
            data = request(names.PATH_STATUS, b"", None, more).replace(b"POST", b"GET")
            assert code(speak(sidecar, data)) in (200, names.STATUS_COPY_WANTED)
    assert isinstance(sidecar.status(), CoordinatorStatus)


def test_a_body_that_is_too_long_is_not_taken(sidecar):
    """Stated, in pieces without an end, or unpacked: the answer is 413, and no memory is spent."""
    before = peak_of(sidecar)
    huge = b"Content-Length: 1099511627776"
    assert code(speak(sidecar, request(names.PATH_SCALE, b"{", more=huge))) in (400, 413)
    piece = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    chunked = b"Transfer-Encoding: chunked"
    answer = speak(sidecar, request(names.PATH_SCALE, piece * 40 + b"0\r\n\r\n", more=chunked))
    assert code(answer) in (0, 413)
    for packed in (
        gzip.compress(bytes(1 << 28), 9),
        gzip.compress(gzip.compress(bytes(1 << 28), 9)),
    ):
        more = f"Content-Encoding: gzip\r\nContent-Length: {len(packed)}".encode()
        assert code(speak(sidecar, request(names.PATH_SCALE, packed, more=more))) in (0, 400, 413)
    assert peak_of(sidecar) - before < 64 << 20


BROKEN = [
    b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00" * 4096,
    b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    request(names.PATH_SCALE, more=b"Content-Length: -1"),
    request(names.PATH_SCALE, more=b"Content-Length: 1\r\nContent-Length: 2"),
    request(names.PATH_SCALE, more=b"Content-Length: 2\r\nTransfer-Encoding: chunked"),
    request(names.PATH_SCALE, b"zz\r\n{}\r\n0\r\n\r\n", more=b"Transfer-Encoding: chunked"),
    request(names.PATH_SCALE, b"not gzip", more=b"Content-Encoding: gzip\r\nContent-Length: 8"),
    request(names.PATH_SCALE, b"\x1f\x8b\x08", more=b"Content-Encoding: gzip\r\nContent-Length: 3"),
    request(names.PATH_SCALE, b"{}", more=b"Content-Length: 100"),
    request("/v1/%2e%2e/%2e%2e/etc/passwd"), request("/v1/\xff"),
    request(names.PATH_SCALE, DEEP), request(names.PATH_SCALE, b"\xff\xfe{}"),
]  # fmt: skip


def test_what_is_no_request_is_refused(sidecar):
    """Bad lines, headers, lengths and codings: an error of the 400s or a closed connection."""
    codes = [code(speak(sidecar, data)) for data in BROKEN]
    chance = random.Random(5)
    whole = request(names.PATH_SCALE, b'{"nodes": 99, "reason": "x"')
    places = [chance.randrange(len(whole)) for _ in range(200)]
    damages = [whole[:at] + chance.randbytes(1 + at % 9) + whole[at + 1 :] for at in places]
    with ThreadPoolExecutor(32) as pool:
        codes += [code(answer) for answer in pool.map(lambda data: speak(sidecar, data), damages)]
    assert all(one == 0 or 400 <= one < 500 for one in codes), codes
    print(f"{len(codes)} refused: { ({one: codes.count(one) for one in sorted(set(codes))}) }")


@pytest.mark.parametrize(
    "path",
    ["/v1/slots/../../etc/0", "/v1/slots/..%2f..%2frun/1", "/v1/slots/replica-../1",
     "/v1/slots/0/-1", "/v1/slots/0/0-1--1-1", "/v1/slots/0/0-1-%D9%A3-1", "/v1/slots/0/0-1-1-1-1",
     "/v1/slots/0/" + "9" * 5000, "/v1/slots/0/0-1-" + "9" * 5000 + "-1",
     "/v1/slots/" + "9" * 300 + "/0-1-1-1", "/v1/slots/%D9%A3/0-1-1-1",
     "/v1/slots/0/0-1-1-1/../../../../etc/passwd", "/v1/slots/0/0-1-1-1?checksum=%00",
     "/v1/slots//0-1-1-1"],
)  # fmt: skip
def test_a_slot_is_named_by_numbers(sidecar, path):
    """No path leads out of the arena."""
    data = request(path, b"").replace(b"POST", b"GET", 1)
    assert code(speak(sidecar, data)) in (400, 404)


def test_who_says_little_does_not_stay(sidecar):
    """Nothing at all, half a line, a byte now and then, half a body: closed when the time is over,
    and whoever asks meanwhile is answered."""
    begins = [
        b"",
        b"POST /v1/scale HTTP/1.1\r\nHo",
        request(names.PATH_SCALE, b"{", more=b"Content-Length: 90"),
    ]

    async def linger(begin: bytes) -> float:
        reader, writer = await asyncio.open_connection(sidecar.address, names.PORT)
        begun = time.monotonic()
        writer.write(begin)
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"X")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1 << 16), LIMIT / 5)
        writer.close()
        return time.monotonic() - begun

    async def ask() -> float:
        begun = time.monotonic()
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{sidecar.address}:{names.PORT}{names.PATH_STATUS}") as answer,
        ):
            assert answer.status == 200
        return time.monotonic() - begun

    async def scenario() -> tuple[list[float], float]:
        async with asyncio.timeout(60):
            crowd = [asyncio.create_task(linger(begins[n % 3])) for n in range(300)]
            await asyncio.sleep(0)
            waited = max([await ask() for _ in range(10)])
            return await asyncio.gather(*crowd), waited

    stayed, waited = asyncio.run(scenario())
    assert max(stayed) < 30
    print(f"300 slow connections stayed {max(stayed):.1f} s at most; others waited {waited:.2f} s")


KINDS = messages()
ALLOWED = {200, 400, 401, 404, 409, 413, 428, 503, 507}


def test_a_strange_message_with_the_token_is_no_mistake():
    """Nearly good messages and rubbish on every path of both listeners: an answer that was thought
    of, never a mistake (500), and the sidecar goes on. Its job is spoilt: it has one of its own."""
    counts: dict[int, int] = {}
    mistakes: list[tuple[object, ...]] = []
    shapes = {
        (path, local): damaged(plain(KINDS[kind])).map(as_bytes) | rubbish
        for known, local in ((POSTED, False), (LOCAL, True), (POSTED, True))
        for path, kind in known.items()
        if not (local and path.startswith(("/v1/commit", "/v1/replicas", "/v1/coord")))
    }
    drawn: list[tuple[str, bool, bytes]] = []

    @settings(
        derandomize=True, max_examples=int(os.environ.get("ROVER_KF_FUZZ", "60")) * 8,
        deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    @given(st.data(), st.sampled_from(sorted(shapes)))
    def draw(data, spot):
        drawn.append((*spot, data.draw(shapes[spot])))

    draw()

    async def send(sessions, spot):
        path, local, body = spot
        session = sessions[local]
        base = "http://sidecar" if local else f"http://{pod.address}:{names.PORT}"
        try:
            async with session.post(base + path, data=body) as answer:
                told = await answer.read()
                if answer.status not in ALLOWED:
                    mistakes.append((path, local, body[:300], answer.status, told))
                counts[answer.status] = counts.get(answer.status, 0) + 1
        except TimeoutError:
            counts[0] = counts.get(0, 0) + 1

    async def scenario():
        quick, headers = aiohttp.ClientTimeout(total=1), {"Authorization": GOOD}
        unix = aiohttp.UnixConnector(path=str(pod.home / names.SOCKET))
        async with (
            aiohttp.ClientSession(timeout=quick, headers=headers) as far,
            aiohttp.ClientSession(timeout=quick, connector=unix) as near,
        ):
            for batch in (drawn[begin : begin + 32] for begin in range(0, len(drawn), 32)):
                await asyncio.gather(*(send({False: far, True: near}, spot) for spot in batch))

    with job_folder() as (folder, net):
        pod = SidecarPod(folder, 0, f"{net}.1", f"{net}.1")
        with ended(pod):
            pod.start().ready()
            asyncio.run(scenario())
            assert pod.process is not None
            assert pod.process.poll() is None
            assert pod.ask(names.PATH_HEALTH, None, Ack) == Ack()
            text = speak(pod, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert code(text) == 200
            assert peak_of(pod) < 400 << 20
            assert not mistakes, mistakes
            assert "mistake" not in pod.log.read_text()
    assert counts[200] > 9
    assert counts[400] > 9
    print(
        f"{len(drawn)} messages on {len(shapes)} places: {dict(sorted(counts.items()))} (0: waits)"
    )
