# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sidecars that encrypt, for real: nothing can be overheard, nobody else is spoken to, and a
certificate is exchanged under load without a request lost."""

from __future__ import annotations

import contextlib
import http.client
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.api.membership import WatchReply, WatchRequest
from rover_kf.api.status import Ack
from rover_kf.system import tls
from tests.support.faults.switching_relay import SwitchingRelay
from tests.support.pods.encrypted_pods import (
    NAME,
    folder_and_secret,
    impostor,
    pod,
    verifying,
)
from tests.support.pods.launcher_pods import Job, kill, show
from tests.support.pods.sidecar_pods import TOKEN, SidecarPod, ended
from tests.support.tls.authority import Authority
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

EVENT = Event("Here", "a word that is secret", warning=False, at=1.0, sequence=0, source="x")


def shown_by(one: SidecarPod, authority: Authority) -> str:
    """Serial number of the certificate that a new connection gets."""
    with (
        socket.create_connection((one.address, names.PORT), timeout=10) as plain,
        verifying(authority).wrap_socket(plain, server_hostname=NAME) as connection,
    ):
        return str((connection.getpeercert() or {})["serialNumber"])


@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "plain"])
def test_who_listens_on_the_way_learns_nothing(encrypted):
    """Neither the token nor what is said is among the bytes that pass; without TLS both are."""
    authority = Authority()
    with folder_and_secret(authority.secret(NAME)) as (folder, net, secret):
        used = secret if encrypted else None
        first = pod(folder, net, 0, used, tls=verifying(authority) if encrypted else None)
        other = pod(folder, net, 1, used, coordinator=f"{net}.100")
        front, back = (f"{net}.100", names.PORT), (first.address, names.PORT)
        with ended(first, other), SwitchingRelay(front, back) as relay:
            for one in (first, other):
                one.start().ready()
            # What a trainer says is forwarded by its sidecar, with the pod's token.
            request = WatchRequest("train-worker-1", "a word that is secret", 7)
            other.ask(names.PATH_WATCH, request, WatchReply)
            assert len(relay.passed) > 500
            assert (TOKEN.encode() in relay.passed) is not encrypted
            assert (b"a word that is secret" in relay.passed) is not encrypted


def test_plain_requests_are_refused_and_have_no_effect():
    """With the right token, too: what is asked in the open is not answered."""
    authority = Authority()
    with folder_and_secret(authority.secret(NAME)) as (folder, net, secret):
        first = pod(folder, net, 0, secret, tls=verifying(authority))
        with ended(first):
            first.start().ready()
            before = len(first.status().events)
            first.tls = None
            for path, message in ((names.PATH_HEALTH, None), (names.PATH_EVENTS, EVENT)):
                with pytest.raises((http.client.HTTPException, OSError)):
                    first.ask(path, message, Ack, local=False)
            first.tls = verifying(authority)
            assert len(first.status().events) == before
            first.ask(names.PATH_EVENTS, EVENT, Ack, local=False)
            assert len(first.status().events) == before + 1


WRONG = {
    "foreign": lambda _: Authority("foreign").secret(NAME),
    "expired": lambda ours: ours.secret(NAME, ends=-60.0),
    "another namespace's": lambda ours: ours.secret(tls.server_name("another")),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_certificate_gets_no_token_and_is_named(what):
    """Whoever took the coordinator's address hears nothing, and the launcher is told why."""
    authority = Authority()
    with folder_and_secret(authority.secret(NAME)) as (folder, net, secret):
        other = pod(folder, net, 1, secret)
        with ended(other), impostor(f"{net}.1", WRONG[what](authority), folder) as heard:
            other.start().ready()
            request = WatchRequest("train-worker-1", "x", 7)
            with pytest.raises(errors.ClusterUnavailable, match="its certificate is refused"):
                other.ask(names.PATH_WATCH, request, WatchReply)
            assert bytes(heard) == b""


def test_what_impostors_would_hear_of_who_believes_them():
    """The same stranger with the right certificate hears the token: the test above can fail."""
    authority = Authority()
    with folder_and_secret(authority.secret(NAME)) as (folder, net, secret):
        other, content = pod(folder, net, 1, secret), authority.secret(NAME)
        with ended(other), impostor(f"{net}.1", content, folder) as heard:
            other.start().ready()
            with pytest.raises(errors.ClusterUnavailable):
                other.ask(names.PATH_WATCH, WatchRequest("train-worker-1", "x", 7), WatchReply)
            assert TOKEN.encode() in heard


def test_a_sidecar_without_a_certificate_that_fits_waits_and_says_so():
    """It opens no port rather than a plain one; once the Secret is mended it serves."""
    authority = Authority()
    with folder_and_secret(authority.secret(NAME, ends=-60.0)) as (folder, net, secret):
        first = pod(folder, net, 0, secret, tls=verifying(authority))
        with ended(first):
            first.start()
            told = "certificate has expired"
            eventually(lambda: told in first.log.read_text(), within=60, what="it is said")
            with pytest.raises(ConnectionRefusedError):
                first.ask(names.PATH_HEALTH, None, Ack, local=False)
            secret.change(authority.secret(NAME))
            first.ready()
            first.ask(names.PATH_HEALTH, None, Ack, local=False)


def test_a_pod_of_a_job_that_does_not_encrypt_is_told_what_to_do():
    """One that was made before tls.secret was stated, and its job not suspended."""
    authority = Authority()
    with folder_and_secret(authority.secret(NAME)) as (folder, net, secret):
        first, other = pod(folder, net, 0, None), pod(folder, net, 1, secret)
        with ended(first, other):
            for one in (first, other):
                one.start().ready()
            with pytest.raises(errors.ClusterUnavailable, match=r"same rover-kf\.io/tls\.secret"):
                other.ask(names.PATH_WATCH, WatchRequest("train-worker-1", "x", 7), WatchReply)


class Load:
    """Requests without a pause, each of whose failures is kept.

    Args:
        ask: one request.
    """

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask, self._over = ask, threading.Event()
        self.answered, self.failed = 0, list[str]()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            self._once()

    def _once(self) -> None:
        try:
            self._ask()
            self.answered += 1
        except (errors.RoverError, OSError, http.client.HTTPException) as error:
            self.failed.append(repr(error))


def test_certificates_are_exchanged_under_load_without_a_request_lost():
    """Seven times another one of the same authority, and then ones of two others: a new connection
    gets the newest one, those that are open stay so, and nobody's request fails. What another
    authority has signed is not shown yet while it has only just been seen, but it is taken."""
    ours, others = Authority("ours"), (Authority("second"), Authority("third"))
    with folder_and_secret(ours.secret(NAME)) as (folder, net, secret):
        pods = [pod(folder, net, rank, secret, tls=verifying(ours)) for rank in range(3)]
        first = pods[0]
        with ended(*pods), contextlib.ExitStack() as stack:
            for one in pods:
                one.start().ready()
            open_ = stack.enter_context(
                contextlib.closing(
                    http.client.HTTPSConnection(first.address, names.PORT, context=first.tls)
                )
            )
            metrics(open_)
            loads = [stack.enter_context(Load(_health(first)))]
            loads += [stack.enter_context(Load(_forwarded(one))) for one in pods[1:]]
            seen = {shown_by(first, ours)}
            for _ in range(7):
                secret.change(ours.secret(NAME))
                eventually(lambda: shown_by(first, ours) not in seen, within=30, what="a new one")
                seen.add(shown_by(first, ours))
            before = [load.answered for load in loads]
            for count, authority in enumerate(others, start=2):
                secret.change(authority.secret(NAME))
                known = f"takes certificates of {count} authorities"
                eventually(
                    lambda known=known: all(known in one.log.read_text() for one in pods),
                    within=30,
                    what=known,
                )
            eventually(
                lambda: all(
                    load.answered > count + 50 for load, count in zip(loads, before, strict=True)
                ),
                within=60,
                what="more is answered",
            )
            assert shown_by(first, ours) in seen
            told = metrics(open_)
        ends = float(re.findall(r"certificate_end_seconds{.*} (.*)", told)[0])
        assert time.time() < ends < time.time() + 86400
        assert [load.failed for load in loads] == [[], [], []]
        show("answered_while_certificates_changed", [load.answered for load in loads])


def _health(one: SidecarPod) -> Callable[[], object]:
    """A connection for each request."""
    return lambda: one.ask(names.PATH_HEALTH, None, Ack, local=False)


def _forwarded(one: SidecarPod) -> Callable[[], object]:
    """To the coordinator through the pod's own sidecar, which keeps its connections."""
    request = WatchRequest(one.name, "x", 7)
    return lambda: one.ask(names.PATH_WATCH, request, WatchReply)


def metrics(connection: http.client.HTTPSConnection) -> str:
    """Asked for on a connection that stays open."""
    connection.request("GET", names.PATH_METRICS)
    return connection.getresponse().read().decode()


def test_a_lost_pod_comes_back_from_its_peers_memory_by_tls():
    """Training by real launchers: the certificate is exchanged, a pod is lost with its memory, and
    its successor gets the state from its peer's memory through TLS."""
    authority = Authority()
    with folder_and_secret(authority.secret(NAME)) as (_, _, secret):
        policy = {names.ENV_TLS_HOME: str(secret.folder), "checkpoint.path": ""}
        with Job(2, min_nodes=2, policy=policy, tls=verifying(authority)) as job:
            command = (job.script(), "100000", "0.02")
            job.start(*command)
            job.stepping(0, 1)
            eventually(lambda: (job.status().sealed_step or 0) >= 10, within=60, what="sealed")
            secret.change(authority.secret(NAME))
            lost = job.pods[1]
            for process in (lost.launcher, lost.sidecar):
                assert process is not None
                kill(process.pid)
                process.wait()
            shutil.rmtree(lost.home)
            job.add(1, *command)

            def resumed() -> list[str]:
                told = " ".join(one.message for one in job.status().events)
                return re.findall(r"rank 1 of 2 resumes at step (\d+) from peer", told)

            (step,) = eventually(resumed, within=240, every=0.2, what="rank 1 resumes")
            assert int(step) >= 10
            job.stepping(0, 1, after=time.time())
