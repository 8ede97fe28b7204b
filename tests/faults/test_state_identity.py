# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Two states of one step, two jobs of one path, two coordinators: never mixed, never replaced."""

from __future__ import annotations

import concurrent.futures
import pathlib
import secrets
import signal

import pytest

from rover_kf import errors
from rover_kf.api.checkpoints import RestoreReply
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.format.manifest import Manifest
from rover_kf.checkpoint.storage.claim import Claim
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from tests.support.pods import checkpoint_pod
from tests.support.pods.bare_trainer import Trainer
from tests.support.states import identities
from tests.support.waiting import eventually

_BYTES = 256 << 10
"""More than a tensor that ranks do not share out when they write it."""
ENTRY = snapshot.Entry("model.w", "U8", (64, _BYTES // 64), 1)


def _content(value: int) -> bytes:
    """A state whose one tensor has that value in each byte."""
    layout = snapshot.plan([ENTRY], {"rover.state": "{}"})
    head = snapshot.header(layout, {"rover.state": "{}"})
    return head.ljust(layout.data_begin, b"\0") + bytes([value]) * _BYTES


def _values(reply: RestoreReply) -> set[int]:
    """The values of a restored state's bytes."""
    data = pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]
    return set(data[-_BYTES:])


def test_a_step_saved_twice_is_stored_as_one_of_the_saves(tmp_path):
    """Rank 1's sidecar is slow: rank 0's file is of the first save, rank 1 has saved again."""
    storage = DirectoryStorage(tmp_path / "pvc" / "demo")
    with checkpoint_pod.pods(tmp_path / "pods", 2, storage=tmp_path / "pvc") as pods:
        ranks = [Trainer(pod, rank, 2) for rank, pod in enumerate(pods)]
        ranks[1].save(10, _content(1))
        lacking = lambda: "ranks [0] have not" in ranks[1].wait(10, "durable", 0).reason  # noqa: E731
        eventually(lacking, what="the coordinator knows of rank 1's save")
        pods[1].process.send_signal(signal.SIGSTOP)
        try:
            ranks[0].save(10, _content(1))
            files = lambda: list(storage.root.rglob("rank-00000*.safetensors"))  # noqa: E731
            eventually(files, what="rank 0's file of the first save")
            ranks[0].save(10, _content(2))
            ranks[1].seal(10, _content(2))  # its sidecar hears of it when it runs again
        finally:
            pods[1].process.send_signal(signal.SIGCONT)
        ranks[1].save(10, _content(2))
        ranks[0].save(10, _content(2))
        assert ranks[0].wait(10, "durable").done
    for folder in storage.complete_folders():
        storage.verify(folder)
    with checkpoint_pod.pods(tmp_path / "later", 1, storage=tmp_path / "pvc") as (pod,):
        assert len(_values(Trainer(pod).restore(9))) == 1


def test_ranks_killed_between_their_second_saves_resume_equal(tmp_path):
    """Rank 0 has saved step 10 again, rank 1 has not: both resume from the first save."""
    with checkpoint_pod.pods(tmp_path / "pods", 2) as pods:
        ranks = [Trainer(pod, rank, 2) for rank, pod in enumerate(pods)]
        for rank in ranks:
            rank.save(10, _content(1), replicated=False)
        ranks[0].save(10, _content(2), replicated=False)
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            replies = list(threads.map(lambda rank: rank.restore(2), ranks))
        assert [_values(reply) for reply in replies] == [{1}, {1}]
        assert {reply.state for reply in replies} == {identities.state(10)}


def test_the_second_job_of_one_path_is_rejected_with_both_names(tmp_path):
    """Two namespaces, one claim of a volume: the later one neither writes nor reads there."""
    with (
        checkpoint_pod.pods(tmp_path / "a", 1, storage=tmp_path / "pvc") as (first,),
        checkpoint_pod.pods(tmp_path / "b", 1, storage=tmp_path / "pvc", namespace="other") as (
            second,
        ),
    ):
        mine, theirs = Trainer(first), Trainer(second)
        assert mine.restore(1).step is None
        mine.save(10, _content(1))
        assert mine.wait(10, "durable").done
        both = "belongs to the job default/demo, and this job is other/demo"
        with pytest.raises(errors.CheckpointError, match=both):
            theirs.restore(1)
        theirs.save(10, _content(2))
        ack = theirs.wait(10, "durable")
        assert (ack.done, ack.permanent) == (False, True)
        assert both in ack.reason
        assert len(DirectoryStorage(tmp_path / "pvc" / "demo").folders()) == 1
    with checkpoint_pod.pods(tmp_path / "c", 1, storage=tmp_path / "pvc") as (first,):
        assert _values(Trainer(first).restore(2)) == {1}


def test_a_job_adopts_what_its_user_names(tmp_path):
    """The former owner, which runs again by mistake, is rejected from then on."""
    place = DirectoryStorage(tmp_path / "demo")
    place.claim(Claim("a/demo", 5))
    with pytest.raises(errors.NotOwner, match="belongs to the job a/demo, and this job is b/demo"):
        place.claim(Claim("b/demo", 6, adopt_from="c/demo"))
    place.claim(Claim("b/demo", 6, adopt_from="a/demo"))
    place.claim(Claim("b/demo", 6))
    with pytest.raises(errors.NotOwner, match="belongs to the job b/demo"):
        place.claim(Claim("a/demo", 7))


def _stored(storage: DirectoryStorage, text: bytes) -> Manifest:
    """A manifest of step 10 of round 1, whose one file is written."""
    state = identities.state(10)
    file = storage.write_rank(storage.folder(state), 0, iter([memoryview(text)]), len(text))
    return Manifest("ns/job", state, state, 1, replicated=True, files=(file,))


@pytest.mark.parametrize("links", [True, False])
def test_a_manifest_is_never_replaced(tmp_path, monkeypatch, links):
    """By another coordinator's of the same state; also where the file system has no links."""
    storage = DirectoryStorage(tmp_path / "demo")
    if not links:

        def refuse(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(storage._files, "link", refuse)
    first, second = _stored(storage, b"one"), _stored(storage, b"two")
    folder = storage.write_manifest(first)
    storage.write_manifest(first)  # an answer that was lost: the same once more
    with pytest.raises(errors.StorageError, match="was written by another coordinator"):
        storage.write_manifest(second)
    assert storage.read_manifest(folder) == first
    assert not list(tmp_path.rglob("*.part"))


def test_a_coordinator_that_was_replaced_commits_and_removes_nothing(tmp_path):
    """It still reaches storage; its successor has claimed the folder."""
    storage = DirectoryStorage(tmp_path / "demo")
    storage.claim(Claim("ns/job", 5))
    storage.claim(Claim("ns/job", 7))
    with pytest.raises(errors.Superseded, match=r"generation 7 .* generation 5"):
        storage.claim(Claim("ns/job", 5))
    assert storage.last_generation() == 7
    assert [path.name for path in (storage.root / "generations").iterdir()] == ["7"]


def test_each_life_of_a_container_without_a_launcher_asks_anew(tmp_path):
    """torchrun inside a shell: every process names round 0. The second one resumes."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        first = Trainer(pod)
        assert first.restore(0).step is None
        assert first.restore(0).step is None  # the same process gets the same answer
        first.save(10, _content(1))
        assert first.wait(10, "memory").done
        second = Trainer(pod)
        reply = second.restore(0)
        assert (reply.step, _values(reply)) == (10, {1})
        with pytest.raises(errors.CheckpointError, match="is over"):
            first.restore(0)


def test_a_world_without_a_launcher_that_grows_begins_a_round(tmp_path):
    """Its new rank asks first, while the other one's former process was answered."""
    with checkpoint_pod.pods(tmp_path, 2) as pods:
        alone = Trainer(pods[0], 0, 1)
        assert alone.restore(0).step is None
        alone.save(10, _content(1))
        ranks = [Trainer(pod, rank, 2) for rank, pod in enumerate(pods)]
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            replies = list(threads.map(lambda rank: rank.restore(0), ranks[::-1]))
        assert [(reply.step, reply.round.number) for reply in replies] == [(10, 2), (10, 2)]


def test_a_step_saved_again_after_a_restore_is_durable_only_once_it_is_stored(tmp_path):
    """The restored state of that step is; the new one is another state."""
    with checkpoint_pod.pods(
        tmp_path, 1, storage=tmp_path / "pvc", checkpoint_persist_seconds=9.0
    ) as (pod,):
        first = Trainer(pod)
        first.save(10, _content(1))
        assert first.wait(10, "durable").done
        assert first.restore(2).step == 10
        first.save(10, _content(2))
        assert not first.wait(10, "durable", 0).done
        assert first.wait(10, "durable").done
    with checkpoint_pod.pods(tmp_path / "later", 1, storage=tmp_path / "pvc") as (pod,):
        assert _values(Trainer(pod).restore(3)) == {2}


def test_a_new_life_of_all_ranks_gets_one_answer(tmp_path):
    """The first one to ask waits for the others' new processes."""
    with checkpoint_pod.pods(tmp_path, 2) as pods:
        ranks = [Trainer(pod, rank, 2) for rank, pod in enumerate(pods)]
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda rank: rank.restore(0), ranks))
            for rank in ranks:
                rank.save(10, _content(1), replicated=False)
            for rank in ranks:
                rank.life = secrets.token_hex(4)
            replies = list(threads.map(lambda rank: rank.restore(0), ranks))
        assert {(reply.step, reply.round.number) for reply in replies} == {(10, 2)}
