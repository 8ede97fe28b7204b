# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The controller asks sidecars that encrypt: its token goes to none that it cannot verify."""

from __future__ import annotations

import contextlib
import http.server
import ssl
import threading

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey, Pod
from rover_kf.cluster import sidecar_request
from rover_kf.cluster.kubernetes import conversion
from rover_kf.cluster.kubernetes.transport import PodNetworkTransport
from rover_kf.system import tls
from tests.support.tls.authority import Authority

KEY = JobKey("team", "digits")
THERE = Pod("digits-worker-0", "u", "worker", 0, "Running", "127.0.0.1", uses_tls=True)
NAME = tls.server_name("team")


@pytest.fixture
def network(tmp_path):
    """The controller's way to pods, with a token for each job."""
    authorities = tmp_path / names.CONTROLLER_AUTHORITIES
    return PodNetworkTransport(authorities, lambda key: f"for {key.name}")


@pytest.fixture
def serving(tmp_path, monkeypatch):
    """A sidecar with a Secret's certificate; which tokens it was shown."""
    with contextlib.ExitStack() as stack:

        def serve(content):
            shown = []

            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    shown.append(self.headers["Authorization"])
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(b"it")

                def do_POST(self):
                    self.do_GET()

                def log_message(self, *_):
                    """Not to the terminal."""

            (tmp_path / "served.pem").write_text(content["tls.crt"] + content["tls.key"])
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tmp_path / "served.pem")
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            monkeypatch.setattr(sidecar_request.names, "PORT", server.server_port)
            stack.callback(server.server_close)
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return shown

        yield serve


def test_a_token_goes_to_a_sidecar_whose_authority_is_told(network, serving, tmp_path):
    """And to the next authority's when the file is another one, as the kubelet writes it."""
    told = tmp_path / names.CONTROLLER_AUTHORITIES
    for authority in (Authority("one"), Authority("two")):
        shown = serving(authority.secret(NAME))
        told.write_text(authority.pem)
        assert network.request(KEY, THERE, "POST", "/v1/scale", b"3") == b"it"
        assert shown == ["Bearer for digits"]


WRONG = {
    "of nobody known": (lambda _: Authority("foreign").secret(NAME), "unable to get local issuer"),
    "over": (lambda ours: ours.secret(NAME, ends=-60.0), "has expired"),
    "of another namespace": (lambda ours: ours.secret(tls.server_name("x")), "not valid for"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_certificate_is_refused_before_anything_is_said(network, serving, tmp_path, what):
    """With the reason."""
    content, reason = WRONG[what]
    ours = Authority()
    (tmp_path / names.CONTROLLER_AUTHORITIES).write_text(ours.pem)
    shown = serving(content(ours))
    for method in ("GET", "POST"):
        with pytest.raises(errors.ClusterUnavailable, match=rf"digits's coordinator .*{reason}"):
            network.request(KEY, THERE, method, "/v1/status", None)
    assert shown == []


def test_without_authorities_no_token_is_sent_and_the_way_is_said(network, serving, tmp_path):
    """So it is where the file holds no certificates."""
    shown = serving(Authority().secret(NAME))
    with pytest.raises(errors.ClusterUnavailable, match=r"sidecar-ca\.crt is not there.*security"):
        network.request(KEY, THERE, "POST", "/v1/scale", b"3")
    (tmp_path / names.CONTROLLER_AUTHORITIES).write_text("no PEM")
    with pytest.raises(errors.ClusterUnavailable, match="holds no certificates of authorities"):
        network.request(KEY, THERE, "GET", "/v1/status", None)
    assert shown == []


def test_no_token_is_sent_for_what_is_open(network, serving):
    """The owner of the job reads what its pod receives."""
    shown = serving(Authority().secret(NAME))
    assert network.request(KEY, THERE, "GET", "/v1/status", None) == b"it"
    assert shown == [None]


@pytest.mark.parametrize("port", [names.PORT_NAME, names.TLS_PORT_NAME])
def test_a_pod_says_by_its_ports_name_whether_it_encrypts(port):
    """As inject has written it into the pod."""
    labels = {names.REPLICA_INDEX_LABEL: "0", names.REPLICA_TYPE_LABEL: "worker"}
    sidecar = {"name": names.SIDECAR_CONTAINER, "ports": [{"name": port}]}
    other = {"name": "another", "ports": [{"name": names.TLS_PORT_NAME}]}
    item = {
        "metadata": {"name": "p", "uid": "u", "labels": labels},
        "spec": {"initContainers": [other, sidecar]},
        "status": {},
    }
    assert conversion.parse_pod(item).uses_tls is (port == names.TLS_PORT_NAME)
