# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The live view's server: reads only, for browsers of this machine.

Who can reach the port sees what the caller may see, as with ``kubectl proxy``; so it listens on a
loopback address. A page of another site cannot read it: a request by another name (DNS rebinding)
is refused, and nothing is answered across origins.
"""

from __future__ import annotations

import http.server
import secrets
import threading
from types import TracebackType
from typing import final

from rover_kf import errors
from rover_kf.cli.pages import Answer, Ask

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
