# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A bucket's keys are exchanged while a job runs: a real sidecar, a real S3 server, a Secret that
is mounted as the kubelet does it.
"""

from __future__ import annotations

import os
import types
import uuid

import pytest

from rover_kf.api import names
from rover_kf.api.status import Ack
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.storage.object_store import ObjectStorage
from tests.support.pods.bare_trainer import Trainer
from tests.support.pods.sidecar_pods import SidecarPod, job_folder
from tests.support.servers.object_server import ObjectServer, object_server
from tests.support.states import identities
from tests.support.tls.mounted_secret import MountedSecret
from tests.support.waiting import eventually

# The first fixture may compile the server: that has a limit of its own.
pytestmark = pytest.mark.timeout(300, func_only=True)

SIZE = 1 << 20
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def _state(number: int) -> bytes:
    """A snapshot of one tensor."""
    layout = snapshot.plan([snapshot.Entry("content", "U8", (SIZE,), 1)], {})
    return snapshot.header(layout, {}) + bytes([number]) * SIZE


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Whose clients this process and its children are not yet."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with object_server(tmp_path / "s3") as running:
        yield running


def _keys(server: ObjectServer) -> dict[str, str]:
    return {name: server.environment[name] for name in KEYS}


def _exchange(server: ObjectServer) -> None:
    """The server knows another key, and the one before no more."""
    server.stop()
    server.key, server.secret = f"key{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
    server.start()


def _environment(server: ObjectServer, secret: MountedSecret) -> dict[str, str]:
    """As of a container whose Secret gave a session's keys when it began."""
    former = dict.fromkeys((*KEYS, "AWS_SESSION_TOKEN"), "former")
    return {**server.environment, **former, names.ENV_KEY_HOME: str(secret.folder)}


def _manifests(server: ObjectServer) -> list[int]:
    found = server.bucket.glob("runs/train/step-*/manifest.json")
    return sorted(int(path.parent.name.split("-")[1]) for path in found)


def test_a_running_sidecar_goes_on_with_the_new_keys(server, tmp_path):
    """Steps become durable before and after, by one process; what its environment had of the keys
    at its start, a session's token that the Secret has no more, counts for nothing. Between the
    two a persist is refused with a Warning that shows no key."""
    known = _keys(server)
    secret = MountedSecret(tmp_path / "secret", known)
    with job_folder() as (folder, place):
        settings = {
            names.ENV_NODES: "1",
            names.ENV_MAX_NODES: "1",
            names.ENV_ARENA_BYTES: str(16 << 20),
            "checkpoint.path": "s3://checkpoints/runs",
            "checkpoint.persist-seconds": "0",
            **_environment(server, secret),
        }
        address = f"{place}.1"
        pod = SidecarPod(folder, 0, address, address, settings=settings).start().ready()
        try:
            trainer = Trainer(
                types.SimpleNamespace(settings=types.SimpleNamespace(volume_path=pod.home))
            )
            trainer.restore(1)
            trainer.save(1, _state(1))
            assert trainer.wait(1, "durable") == Ack()
            begun_by = pod.process.pid
            _exchange(server)
            trainer.save(2, _state(2))
            refused = eventually(lambda: _refusals(pod), within=60, what="a Warning")
            assert _manifests(server) == [1]
            secret.change(_keys(server))
            trainer.save(3, _state(3))
            eventually(lambda: 3 in _manifests(server), within=120, what="step 3 is durable")
            assert pod.process.pid == begun_by
            assert pod.process.poll() is None
            shown = pod.log.read_text() + "".join(event.message for event in pod.status().events)
        finally:
            pod.kill()
    assert "check the Secret that rover-kf.io/checkpoint.secret names" in refused[0]
    for value in (*known.values(), *_keys(server).values()):
        assert value not in shown


def _refusals(pod: SidecarPod) -> list[str]:
    told = pod.status().events
    return [event.message for event in told if "checkpoints in memory go on" in event.message]


def test_half_an_upload_is_made_again_with_the_new_keys(server, tmp_path, monkeypatch):
    """By the files, not the variables; the half that the old keys left stays an upload."""
    secret = MountedSecret(tmp_path / "secret", _keys(server))
    for name, value in _environment(server, secret).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_SESSION_TOKEN")  # as a sidecar does at its start
    storage = ObjectStorage("s3://checkpoints/runs/train")
    folder = storage.folder(identities.state(1))

    def until_exchanged():
        yield memoryview(bytes(30 << 20))
        eventually(lambda: server.unfinished() == 1, what="the upload has begun")
        _exchange(server)
        yield memoryview(bytes(30 << 20))

    with pytest.raises(Exception, match="check the Secret"):
        storage.write_rank(folder, 0, until_exchanged(), 60 << 20)
    assert server.unfinished() == 1
    secret.change(_keys(server))
    file = storage.write_rank(folder, 0, iter([memoryview(bytes(1000))]), 1000)
    sizes = storage.sizes(folder)
    assert sizes.pop(file.name) == 1000
    assert set(sizes.values()) == {0}, "the name that the first attempt had reserved"
