# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods whose sidecars encrypt, and strangers that have taken an address of theirs."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

from rover_kf.api import names
from rover_kf.system import tls
from tests.support.pods.sidecar_pods import SidecarPod, job_folder
from tests.support.tls.authority import Authority
from tests.support.tls.mounted_secret import MountedSecret

NAME = tls.server_name("test")


def verifying(*authorities: Authority) -> ssl.SSLContext:
    """As a peer verifies, at whatever address."""
    context = tls.verifying_context("\n".join(one.pem for one in authorities))
    context.check_hostname = False
    return context


@contextlib.contextmanager
def folder_and_secret(
    content: dict[str, str],
) -> Iterator[tuple[pathlib.Path, str, MountedSecret]]:
    """A job's folder, its network, and the Secret that its pods mount."""
    with job_folder() as (folder, net):
        yield folder, net, MountedSecret(folder / "tls", content)


def pod(
    folder: pathlib.Path, net: str, rank: int, secret: MountedSecret | None, **more: Any
) -> SidecarPod:
    """One whose sidecar encrypts if there is a Secret."""
    settings = dict(more.pop("settings", {}))
    if secret:
        settings[names.ENV_TLS_HOME] = str(secret.folder)
    more.setdefault("coordinator", f"{net}.1")
    return SidecarPod(folder, rank, f"{net}.{rank + 1}", settings=settings, **more)


@contextlib.contextmanager
def impostor(address: str, content: dict[str, str], folder: pathlib.Path) -> Iterator[bytearray]:
    """Somebody who has taken the coordinator's address; what it got to read."""
    context, heard = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), bytearray()
    (folder / "impostor.pem").write_text(content["tls.crt"] + content["tls.key"])
    context.load_cert_chain(folder / "impostor.pem")
    tried = threading.Event()

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listener.accept()
                tried.set()
                with (
                    contextlib.suppress(OSError),
                    context.wrap_socket(plain, server_side=True) as found,
                ):
                    found.settimeout(2)
                    heard.extend(found.recv(1 << 16))

    with socket.create_server((address, names.PORT)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        try:
            yield heard
        finally:
            assert tried.is_set()
            listener.shutdown(socket.SHUT_RDWR)
