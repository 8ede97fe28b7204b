# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The live view's server: reads only, for browsers of this machine.

Who can reach the port sees what the caller may see, as with ``kubectl proxy``; so it listens on a
loopback address. A page of another site cannot read it: a request by another name (DNS rebinding)
is refused, and nothing is answered across origins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import re
import secrets
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator

from rover_kf import errors
from rover_kf.api.jobs import JobKey, ObservedJob
from rover_kf.cli import job_tables
from rover_kf.client import RoverClient
from rover_kf.client.results import CurrentRecords
from rover_kf.job_kinds.registry import job_kinds
from rover_kf.report import page
from rover_kf.report.page import JobRow, LiveOptions

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""Of Kubernetes' objects."""


@dataclasses.dataclass(frozen=True, slots=True)
class PageResponse:
    """To one GET."""

    status: int
    text: str
    kind: str = "text/plain"


class LiveViewPages:
    """All pages of the live view; ``every`` shows also jobs that have ended.

    A look serves all requests within half the time between two: more windows of a browser ask the
    cluster no more often.
    """

    def __init__(
        self, rover: RoverClient, *, namespace: str | None, every: bool, seconds: float
    ) -> None:
        self._rover = rover
        self._namespace, self._every, self._seconds = namespace, every, seconds
        self._present = CurrentRecords(rover.cluster, rover.history)
        self._lock = threading.Lock()
        self._cached: dict[str, tuple[float, str, PageResponse]] = {}

    def respond(self, path: str, nonce: str) -> PageResponse:
        """The page of a path, its script bearing the nonce."""
        with self._lock:
            now = time.monotonic()
            self._cached = {
                name: kept
                for name, kept in self._cached.items()
                if now - kept[0] < self._seconds / 2
            }
            if path not in self._cached:
                self._cached[path] = (now, nonce, self._render(path, nonce))
            _, held, found = self._cached[path]
            return dataclasses.replace(found, text=found.text.replace(held, nonce))

    def _render(self, path: str, nonce: str) -> PageResponse:
        live = LiveOptions(self._seconds, nonce)
        try:
            if path == "/":
                return PageResponse(200, self._jobs(live), "text/html")
            match [urllib.parse.unquote(part) for part in path.split("/")]:
                case ["", "jobs", namespace, kind, name] if _is_key(namespace, kind, name):
                    record = self._present.record(JobKey(namespace, name, kind), time.time())
                    return PageResponse(200, page.render(record, live=live), "text/html")
        except errors.NoSuchJob as error:
            return PageResponse(404, str(error))
        except errors.RoverError as error:
            return PageResponse(503, str(error))
        return PageResponse(404, "there are / and /jobs/NAMESPACE/KIND/NAME")

    def _jobs(self, live: LiveOptions) -> str:
        found = sorted(self._rover.list(self._namespace), key=lambda job: (job.finished, job.key))
        rows = [self._row(job) for job in found if self._every or not job.finished]
        where = f"namespace {self._namespace}" if self._namespace else "all namespaces"
        shown = "also those that have ended" if self._every else "those at work"
        return page.render_jobs(
            rows, columns=job_tables.COLUMNS[1:], caption=f"{where}, {shown}", live=live
        )

    def _row(self, job: ObservedJob) -> JobRow:
        progress = self._rover.progress(job.key)
        parts = (job.key.namespace, job.key.kind, job.key.name)
        address = "/jobs/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)
        _, _, *cells = job_tables.status_cells(progress)  # its key is told as a whole
        return JobRow(str(job.key), address, tuple(cells), bad=job_tables.has_failed(progress))


def _is_key(namespace: str, kind: str, name: str) -> bool:
    known = (job_kind.kind for job_kind in job_kinds())
    return kind in known and all(_NAME.fullmatch(one) for one in (namespace, name))


PageHandler = Callable[[str, str], PageResponse]
"""Path and nonce to an answer."""
HOST = "127.0.0.1"
REQUEST_SECONDS = 10.0
"""In which a request has to be there."""


@contextlib.contextmanager
def serve(get_page: PageHandler, port: int) -> Iterator[str]:
    """Serve pages while the block runs; yields their address. Port 0 is any that is free."""
    try:
        server = http.server.ThreadingHTTPServer((HOST, port), _make_handler(get_page))
    except OSError as cause:
        raise errors.InputError(
            f"port {port} of {HOST} cannot be used: {cause}; allowed: another --port, 0 for any "
            "that is free"
        ) from cause
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.1,))
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _make_handler(get_page: PageHandler) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version, sys_version = "rover-kf", ""

        def do_GET(self) -> None:
            nonce = secrets.token_urlsafe(16)
            answer = self._respond(nonce)
            body = answer.text.encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            for name, value in _headers(nonce).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def _respond(self, nonce: str) -> PageResponse:
            port = self.connection.getsockname()[1]
            if self.headers.get("Host", "") not in {f"{HOST}:{port}", f"localhost:{port}"}:
                return PageResponse(421, f"this is {HOST}:{port} and nothing else")
            path = self.path.partition("?")[0]
            return PageResponse(204, "") if path == "/favicon.ico" else get_page(path, nonce)

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
