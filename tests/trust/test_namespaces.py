# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a namespace's jobs report has no effect on another's, unless an administrator shares it."""

from __future__ import annotations

import dataclasses
import http.server
import pathlib
import stat
import threading
from collections.abc import Iterator

import pytest

from rover_kf import errors
from rover_kf.api.faults.node_check_messages import (
    NodeCheckReport,
    PairMeasurement,
    PodMeasurement,
)
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.elastic.node_check.verdict import CheckEvidence, FleetBaselines, pod_verdicts
from rover_kf.history.remote import RemoteHistory
from rover_kf.history.store import SqlHistory
from rover_kf.reconcilers.run_recording import RunHistory
from tests.support.jobs.embedded_job import client_in
from tests.support.jobs.job_manifests import make_job
from tests.support.waiting import eventually

NOW = 1_000.0


def made_up() -> RunRecord:
    """A run of another tenant: its check calls node gpu-7 bad, and every healthy pair slow."""
    pods = (*(PodMeasurement(name, f"n-{name}", "H100", None) for name in "bcpqrstu"),)
    pairs = [PairMeasurement(*pair, 1e-9) for pair in ("pq", "rs", "tu", "bc")]
    check = NodeCheckReport(
        NOW - 5, 1.0, (PodMeasurement("a", "gpu-7", "H100", None), *pods),
        (PairMeasurement("a", "b", None, "nccl error"), *pairs),
    )  # fmt: skip
    signature = JobSignature("team-evil", "evil", "PyTorchJob", "i", "c", 1, 0)
    made = RunRecord("e", signature, NOW, NOW, "running", {}, {})
    return dataclasses.replace(made, preflights=(check,))


def healthy() -> NodeCheckReport:
    names = ("llm-worker-0", "llm-worker-1")
    pods = tuple(PodMeasurement(n, f"gpu-{i}", "H100", 0.002) for i, n in enumerate(names, 7))
    return NodeCheckReport(NOW, 1.0, pods, (PairMeasurement(*names, 0.01),))


@pytest.mark.parametrize(("shared", "believed"), [((), False), (("team-evil",), True)])
def test_a_check_of_nodes_is_judged_by_the_own_namespace(tmp_path, shared, believed):
    """bcea6b1 judged it by all checks of all namespaces: made-up figures had healthy nodes left out
    of another tenant's job."""
    check = healthy()
    alone = pod_verdicts(CheckEvidence(check.pods, check.pairs, FleetBaselines()))
    with SqlHistory(f"sqlite:///{tmp_path}/h.db", shared=shared) as store:
        store.upsert(made_up())
        fleet = RunHistory(store).fleet(check, "team-b")
    assert (fleet != FleetBaselines()) is believed
    judged = pod_verdicts(CheckEvidence(check.pods, check.pairs, fleet))
    assert (judged != alone) is believed


@pytest.fixture
def redirecting() -> Iterator[tuple[str, list[str | None]]]:
    """A history that sends its callers to another server, and the tokens that this one receives."""
    received: list[str | None] = []

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"runs": []}')

        def log_message(self, *_: object) -> None:
            """Not to the terminal."""

    class History(Other):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.2:{other.server_port}{self.path}")
            self.end_headers()

    other = http.server.ThreadingHTTPServer(("127.0.0.2", 0), Other)
    first = http.server.ThreadingHTTPServer(("127.0.0.1", 0), History)
    threads = [threading.Thread(target=one.serve_forever, args=(0.05,)) for one in (first, other)]
    for thread in threads:
        thread.start()
    yield f"http://127.0.0.1:{first.server_port}", received
    for server in (first, other):
        server.shutdown()
        server.server_close()
    for thread in threads:
        thread.join()


def test_a_token_for_the_history_follows_no_redirect(redirecting, tmp_path):
    """It opens the API server with the pod's rights; bcea6b1 sent it to whom the answer named."""
    url, received = redirecting
    (tmp_path / "token").write_text("api-token")
    with pytest.raises(errors.HistoryUnavailable, match="302"):
        RemoteHistory(url, token=tmp_path / "token").list()
    assert received == []


def test_a_token_for_the_history_is_not_sent_in_clear_text(tmp_path):
    """Beyond this machine: http:// is refused before anything is sent."""
    (tmp_path / "token").write_text("api-token")
    for url in (
        "http://rover-kf-webhook.rover-kf-system.svc",
        "http://127.0.0.1.nip.io",
        "ftp://x",
    ):
        with pytest.raises(errors.HistoryUnavailable, match=r"https://|no URL"):
            RemoteHistory(url, token=tmp_path / "token").list()


def test_an_embedded_job_belongs_to_its_user(tmp_path):
    """Other users of the machine could drive the job, read its state and its variables: a pod's
    socket takes no token, and bcea6b1's folders were open to all."""
    state = tmp_path / "state"

    def memory() -> list[pathlib.Path]:
        listed = [path.read_text().split() for path in state.rglob("memory.list")]
        return [pathlib.Path(line) for lines in listed for line in lines]

    with client_in(tmp_path) as rover:
        rover.submit(make_job(workers=1, command=["sleep", "60"]))
        (folder,) = eventually(lambda: [one for one in memory() if one.is_dir()])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (job,) = (path.parent for path in state.rglob("job.json"))
        assert stat.S_IMODE(job.stat().st_mode) == 0o700
