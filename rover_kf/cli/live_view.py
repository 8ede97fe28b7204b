# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The live view's server: reads only, for browsers of this machine.

Who can reach the port sees what the caller may see, as with ``kubectl proxy``; so it listens on a
loopback address. A page of another site cannot read it: a request by another name (DNS rebinding)
is refused, and nothing is answered across origins.
"""

from __future__ import annotations

import dataclasses
import http.server
import re
import secrets
import threading
import time
import urllib.parse
from collections.abc import Callable
from types import TracebackType
from typing import final

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey, ObservedJob
from rover_kf.cli import job_tables
from rover_kf.client import RoverClient
from rover_kf.client.current_record import Present
from rover_kf.report import page
from rover_kf.report.page import JobRow, Live

KINDS = (names.PYTORCHJOB, names.TFJOB)


_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


"""Of Kubernetes' objects."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """To one GET."""

    status: int
    text: str
    kind: str = "text/plain"


class Pages:
    """All pages of the live view.

    A look serves everybody who asks within half the time between two: more windows of a browser
    ask the cluster no more often.

    Args:
        rover: whose jobs are shown.
        namespace: only of it; None: of all.
        every: also jobs that have ended.
        seconds: between two looks.
    """

    def __init__(
        self, rover: RoverClient, *, namespace: str | None, every: bool, seconds: float
    ) -> None:
        self._rover = rover
        self._namespace, self._every, self._seconds = namespace, every, seconds
        self._present = Present(rover.cluster, rover.history)
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, str, Answer]] = {}

    def answer(self, path: str, nonce: str) -> Answer:
        """The page of a path, its script bearing the nonce."""
        with self._lock:
            now = time.monotonic()
            self._kept = {
                name: kept for name, kept in self._kept.items() if now - kept[0] < self._seconds / 2
            }
            if path not in self._kept:
                self._kept[path] = (now, nonce, self._made(path, nonce))
            _, held, found = self._kept[path]
            return dataclasses.replace(found, text=found.text.replace(held, nonce))

    def _made(self, path: str, nonce: str) -> Answer:
        live = Live(self._seconds, nonce)
        try:
            if path == "/":
                return Answer(200, self._jobs(live), "text/html")
            match [urllib.parse.unquote(part) for part in path.split("/")]:
                case ["", "jobs", namespace, kind, name] if _is_key(namespace, kind, name):
                    return Answer(200, self._job(JobKey(namespace, name, kind), live), "text/html")
        except errors.JobNotFound as error:
            return Answer(404, str(error))
        except errors.RoverError as error:
            return Answer(503, str(error))
        return Answer(404, "there are / and /jobs/NAMESPACE/KIND/NAME")

    def _jobs(self, live: Live) -> str:
        found = sorted(self._rover.list(self._namespace), key=lambda job: (job.finished, job.key))
        rows = [self._row(job) for job in found if self._every or not job.finished]
        where = f"namespace {self._namespace}" if self._namespace else "all namespaces"
        shown = "also those that have ended" if self._every else "those at work"
        return page.render_jobs(
            rows, columns=job_tables.COLUMNS[1:], place=f"{where}, {shown}", live=live
        )

    def _row(self, job: ObservedJob) -> JobRow:
        progress = self._rover.progress(job.key)
        parts = (job.key.namespace, job.key.kind, job.key.name)
        address = "/jobs/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)
        _, _, *cells = job_tables.cells(progress)  # its key is told as a whole
        return JobRow(str(job.key), address, tuple(cells), bad=job_tables.failed(progress))

    def _job(self, key: JobKey, live: Live) -> str:
        return page.render(self._present.record(key, time.time()), live=live)


def _is_key(namespace: str, kind: str, name: str) -> bool:
    return kind in KINDS and all(_NAME.fullmatch(one) for one in (namespace, name))


Ask = Callable[[str, str], Answer]


"""Path and nonce to an answer."""


HOST = "127.0.0.1"


REQUEST_SECONDS = 10.0


"""In which a request has to be there."""


@final
class Web:
    """Serves pages while the block runs.

    Args:
        ask: what is answered at a path.
        port: of HOST; 0: any that is free.
    """

    def __init__(self, ask: Ask, port: int) -> None:
        self._ask, self._port = ask, port

    def __enter__(self) -> Web:
        try:
            self._server = http.server.ThreadingHTTPServer((HOST, self._port), _handler(self._ask))
        except OSError as cause:
            raise errors.InputError(
                f"port {self._port} of {HOST} cannot be used: {cause}; allowed: another --port, "
                "0 for any that is free"
            ) from cause
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self._server.server_port}/"


def _handler(ask: Ask) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version, sys_version = "rover-kf", ""

        def do_GET(self) -> None:
            nonce = secrets.token_urlsafe(16)
            answer = self._answer(nonce)
            body = answer.text.encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            for name, value in _headers(nonce).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def _answer(self, nonce: str) -> Answer:
            port = self.connection.getsockname()[1]
            if self.headers.get("Host", "") not in {f"{HOST}:{port}", f"localhost:{port}"}:
                return Answer(421, f"this is {HOST}:{port} and nothing else")
            path = self.path.partition("?")[0]
            return Answer(204, "") if path == "/favicon.ico" else ask(path, nonce)

        def log_message(self, *_: object) -> None:
            """Nothing: the terminal has the address."""

    return Handler


def _headers(nonce: str) -> dict[str, str]:
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
