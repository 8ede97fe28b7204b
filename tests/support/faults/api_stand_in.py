# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A loopback stand-in for the API server, for faults that a real one cannot be asked for.

Objects with resourceVersions, conflicts, merge patches, lists in pages, Status bodies; watches are
scripted by the test. The real API server is used by tests/cluster.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import kubernetes.client

Reply = tuple[int, Any]


class StandIn:
    """Objects by path, and every request that was made.

    ``hooks`` are asked first: the first that returns a reply wins; they inject faults.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, dict[str, str], Any, dict[str, str]]] = []
        self.hooks: list[Callable[[str, str], Reply | None]] = []
        self.watches: list[list[dict[str, Any]]] = []
        self.version = 100
        self.lock = threading.Lock()
        self.url = ""

    def client(self) -> kubernetes.client.ApiClient:
        """A client of this server with a bearer token."""
        configuration = kubernetes.client.Configuration(host=self.url)
        configuration.api_key["authorization"] = "Bearer caller"
        configuration.retries = False
        return kubernetes.client.ApiClient(configuration)

    def put(self, path: str, item: dict[str, Any]) -> dict[str, Any]:
        """Store an object as if someone else had written it."""
        self.version += 1
        metadata = {"uid": f"uid-{self.version}", **item.get("metadata", {})}
        metadata["resourceVersion"] = str(self.version)
        self.objects[path] = {**item, "metadata": metadata}
        return self.objects[path]

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Reply:
        """One request."""
        for hook in self.hooks:
            reply = hook(method, path)
            if reply is not None:
                return reply
        if method == "POST":
            where = f"{path}/{body['metadata']['name']}"
            if where in self.objects:
                return failure(409, "AlreadyExists", f"{body['metadata']['name']} already exists")
            return 201, self.put(where, body)
        found = self.objects.get(path)
        if method == "GET" and found is None and self._is_collection(path):
            return 200, self._list(path, query)
        if found is None:
            return failure(404, "NotFound", f"{path.rsplit('/', 1)[1]} not found")
        if method == "DELETE":
            return 200, self.objects.pop(path)
        if method == "GET":
            return 200, found
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted not in (None, found["metadata"]["resourceVersion"]):
            return failure(409, "Conflict", "the object has been modified")
        return 200, self.put(path, body if method == "PUT" else merged(found, body))

    def _is_collection(self, path: str) -> bool:
        plural = path.rsplit("/", 1)[1]
        return plural in ("pytorchjobs", "tfjobs", "pods", "nodes", "events", "secrets")

    def _list(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        parts = path.split("/namespaces/")
        plural = path.rsplit("/", 1)[1]
        inside = [
            item
            for key, item in sorted(self.objects.items())
            if key.rsplit("/", 2)[1] == plural and (len(parts) == 1 or key.startswith(path + "/"))
        ]
        limit, start = int(query.get("limit", "500")), int(query.get("continue", "0"))
        metadata = {"resourceVersion": str(self.version)}
        if len(inside) > start + limit:
            metadata["continue"] = str(start + limit)
        return {"metadata": metadata, "items": inside[start : start + limit]}


def failure(code: int, reason: str, message: str) -> Reply:
    """A Status as the API server sends it."""
    return code, {"kind": "Status", "code": code, "reason": reason, "message": message}


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    base = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            base.pop(key, None)
        else:
            base[key] = merged(base.get(key), value)
    return base


@contextlib.contextmanager
def serving() -> Iterator[StandIn]:
    """A stand-in on a free port of the loopback."""
    stand_in = StandIn()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            url = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(url.query))
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            with stand_in.lock:
                headers = {key.lower(): value for key, value in self.headers.items()}
                stand_in.requests.append((self.command, url.path, query, body, headers))
                watched = stand_in.watches.pop(0) if "watch" in query and stand_in.watches else []
                if "watch" not in query:
                    code, reply = stand_in.answer(self.command, url.path, query, body)
            if "watch" in query:
                code, reply = 200, "".join(json.dumps(change) + "\n" for change in watched)
            data = reply.encode() if isinstance(reply, str) else json.dumps(reply).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - http.server's

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stand_in.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield stand_in
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
