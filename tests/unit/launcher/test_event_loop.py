# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A launcher's requests where the pod has no thread to give."""

from __future__ import annotations

import http.server
import queue
import socketserver
import threading

import pytest

from rover_kf.api import codec, names
from rover_kf.api.status import Ack
from rover_kf.launcher.event_loop import EventLoop
from rover_kf.launcher.sidecar_requests import SidecarConnector


class _Sidecar(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = codec.dumps(Ack(reason="heard"))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return "the launcher"


@pytest.fixture
def home(tmp_path):
    (tmp_path / names.SOCKET).parent.mkdir()
    path = str(tmp_path / names.SOCKET)
    with socketserver.ThreadingUnixStreamServer(path, _Sidecar) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield tmp_path
        server.shutdown()


def test_a_thread_that_cannot_be_started_is_no_end(home, monkeypatch):
    """The limit of processes is reached for a moment (data loaders begin): it is asked again."""
    start, refused = threading.Thread.start, []

    def refusing(thread):
        if thread.name.startswith("call ") and len(refused) < 3:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    errands = EventLoop(SidecarConnector(home), queue.SimpleQueue(), lambda _: None)
    assert errands.request(names.PATH_FLUSH, {}, Ack).reason == "heard"
    assert len(refused) == 3
