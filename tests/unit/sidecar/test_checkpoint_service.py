# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a pod's sidecar answers to trainers, launcher and other sidecars about checkpoints."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import pathlib
import time
import urllib.error
import urllib.request

import crc32c
import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import RestoreReply, RestoreRequest, RestoreStepReply, SlotInfo
from rover_kf.api.status import Ack
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.sidecar.restore.restorer import Restorer
from rover_kf.sidecar.slots.server import SlotServer
from rover_kf.sidecar.slots.slots import PodSlots
from rover_kf.sidecar.slots.verifier import SlotVerifier
from tests.support.pods import checkpoint_pod
from tests.support.pods.bare_trainer import Trainer
from tests.support.states import identities
from tests.support.waiting import eventually


def _state(content: bytes) -> bytes:
    """A snapshot of one tensor: what goes to storage has a header."""
    layout = snapshot.plan([snapshot.Entry("content", "U8", (len(content),), 1)], {})
    return snapshot.header(layout, {}) + content


def _content(reply: RestoreReply) -> bytes:
    data = pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]
    assert crc32c.crc32c(data) == reply.checksum
    return data


def test_a_slot_is_served_with_its_checksum(tmp_path):
    """Another sidecar gets the sealed bytes and no more; a step that is not held is 404."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        trainer = Trainer(pod)
        content = os.urandom(9 << 20)
        trainer.save(5, content)
        base = f"http://{pod.settings.address}:{pod.settings.port}{names.PATH_SLOTS}/0"
        with urllib.request.urlopen(f"{base}/{identities.state(5).key}") as response:
            assert response.headers["X-Rover-Checksum"] == str(crc32c.crc32c(content))
            assert response.headers["Content-Length"] == str(len(content))
            assert response.read() == content
        stale = identities.state(5, 2).key
        for missing in (identities.state(6).key, stale, "5", "0-1-5-1/6", "x"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{base}/{missing}")
            assert refused.value.code == 404
            refused.value.close()


@pytest.mark.parametrize("examined", [False, True])
def test_damaged_memory_is_never_restored(tmp_path, examined):
    """A bit that flips after the seal costs the step, not the truth: the older one, a Warning;
    also where it was seen before anybody asked."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        trainer = Trainer(pod)
        trainer.save(1, b"older")
        seal = trainer.save(2, b"newer")
        eventually(lambda: trainer.arena.record.read_checksum(seal) is not None)
        with trainer.arena.slot_path(seal.slot).open("r+b") as slot:
            slot.write(b"X")
        if examined:
            trainer.link.request(names.PATH_EXAMINE, Ack(), Ack, timeout=10)
        reply = trainer.restore(2)
        assert (reply.step, reply.source, _content(reply)) == (1, "memory", b"older")
        (warning,) = pod.told(names.EVENT_CHECKPOINT_WARNING)
        assert "step 2" in warning
        assert "CRC-32C" in warning


def test_an_older_step_is_verified_when_it_is_wanted(tmp_path):
    """Only the newest slot is read for the choice; an older one that is damaged is never taken."""
    with checkpoint_pod.pods(tmp_path, 2) as (first, second):
        trainers = [Trainer(first, 0, 2), Trainer(second, 1, 2)]
        older, _ = (trainer.save(1, b"older", replicated=False) for trainer in trainers)
        newer = trainers[0].save(2, b"newer", replicated=False)
        control = trainers[0].arena.record
        eventually(lambda: None not in map(control.read_checksum, (older, newer)))
        with trainers[0].arena.slot_path(older.slot).open("r+b") as slot:
            slot.write(b"X")
        with concurrent.futures.ThreadPoolExecutor() as ranks:
            answers = [ranks.submit(trainer.restore, 2) for trainer in trainers]
            with pytest.raises(errors.CorruptSnapshot, match="step 1 "):
                answers[0].result()
            assert _content(answers[1].result()) == b"older"
        assert any("step 1 " in message for message in first.told(names.EVENT_CHECKPOINT_WARNING))
        assert older not in trainers[0].arena.sealed()


def test_flush_makes_the_newest_step_durable(tmp_path):
    """Whatever the pace of persists; a second flush has nothing to do."""
    storage = tmp_path / "pvc"
    with checkpoint_pod.pods(tmp_path, 1, storage=storage, checkpoint_persist_seconds=3600.0) as (
        pod,
    ):
        trainer = Trainer(pod)
        assert trainer.flush() == Ack(reason="nothing was saved")
        for steps in ((0,), (1, 2, 3)):
            for step in steps:
                trainer.save(step, _state(b"%d" % step))
            assert trainer.flush() == Ack()
            assert (storage / "demo" / f"step-{step:012d}-1" / "manifest.json").exists()
        file = storage / "demo" / "step-000000000003-1" / "rank-00000.safetensors"
        assert file.read_bytes() == _state(b"3")
        assert trainer.flush() == Ack()


def _steps(storage: pathlib.Path) -> list[int]:
    return [folder.step for folder in DirectoryStorage(storage / "demo").complete_folders()]


def _verified(storage: pathlib.Path) -> list[tuple[int, int]]:
    """Steps of all checkpoints on storage and which save each is, every byte of them compared."""
    stored = DirectoryStorage(storage / "demo")
    found = [stored.verify(folder).state for folder in stored.complete_folders()]
    return [(state.step, state.save) for state in found]


def _stored(storage: pathlib.Path, step: int, save: int) -> bytes:
    """The file of the one rank of a checkpoint of the first round."""
    folder = DirectoryStorage(storage / "demo").folder(identities.state(step, 1, save))
    return (pathlib.Path(folder.location) / "rank-00000.safetensors").read_bytes()


def test_a_step_that_is_saved_again_leaves_its_checkpoint_whole(tmp_path):
    """Durable, evaluated, saved once more with what was measured, flushed: it stays what it was,
    and the later save is another checkpoint."""
    storage = tmp_path / "pvc"
    with checkpoint_pod.pods(tmp_path, 1, storage=storage) as (pod,):
        trainer = Trainer(pod)
        for step in (50, 100):
            trainer.save(step, _state(b"%03d" % step))
            assert trainer.wait(step, "durable").done
        trainer.save(100, _state(b"evaluated"))
        assert trainer.flush() == Ack()
        assert _verified(storage) == [(50, 1), (100, 1), (100, 2)]
        assert _stored(storage, 100, 1) == _state(b"100")
        assert _stored(storage, 100, 2) == _state(b"evaluated")
        assert pod.told(names.EVENT_CHECKPOINT_WARNING) == []


def test_a_step_that_is_saved_again_is_whole_after_a_restart(tmp_path):
    """The sidecar of the first pod starts anew and knows nothing of what it has written."""
    storage = tmp_path / "pvc"
    with checkpoint_pod.pods(tmp_path, 1, storage=storage) as (pod,):
        trainer = Trainer(pod)
        trainer.save(100, _state(b"100"))
        assert trainer.wait(100, "durable").done
        trainer.save(100, _state(b"evaluated"))
        pod.kill()
        pod.start()
        assert trainer.flush() == Ack()
        trainer.save(101, _state(b"101"))
        assert trainer.wait(101, "durable").done
        assert _verified(storage) == [(100, 1), (100, 2), (101, 1)]
        assert _stored(storage, 100, 1) == _state(b"100")
        assert _stored(storage, 100, 2) == _state(b"evaluated")
        assert pod.told(names.EVENT_CHECKPOINT_WARNING) == []


def test_a_rank_that_writes_again_before_the_commit_spoils_nothing(tmp_path):
    """Rank 0 has reported its file and saves the step again, its sidecar started anew: what rank
    1's report completes is whole, whether rank 0 has reported once more or not."""
    storage = tmp_path / "pvc"
    files = functools.partial((storage / "demo").glob, "step-000000000007-*/*.safetensors")

    def is_written(content: bytes) -> bool:
        return any(content in file.read_bytes() for file in files())

    pods = checkpoint_pod.pods(tmp_path, 2, storage=storage, checkpoint_persist_seconds=3600.0)
    with pods as (first, second), concurrent.futures.ThreadPoolExecutor() as pool:
        ranks = Trainer(second, 0, 2), Trainer(first, 1, 2)
        flushes = []
        for content in (b"of rank 0", b"once more"):
            ranks[0].save(7, _state(content), replicated=False)
            flushes.append(pool.submit(ranks[0].flush))
            eventually(lambda content=content: is_written(content), what="rank 0 has written")
            second.kill()
            second.start()
        ranks[1].save(7, _state(b"of rank 1"), replicated=False)
        assert ranks[1].flush() == Ack()
        assert _verified(storage) == [(7, 1)]
        assert all(flush.exception() for flush in flushes)


def test_flush_without_a_checkpoint_path_says_so(tmp_path):
    """Memory only: done at once, with the reason."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        Trainer(pod).save(1, b"x")
        reply = Trainer(pod).flush()
        assert reply.done
        assert "checkpoint path" in reply.reason


def test_flush_outlasts_a_storage_that_refuses(tmp_path):
    """A pod that ends keeps its memory until its step is durable: storage is asked again and again,
    which makes one event, and the flush succeeds once it takes the file."""
    storage = tmp_path / "pvc"
    storage.write_text("in the way")
    with (
        checkpoint_pod.pods(tmp_path, 1, storage=storage, checkpoint_persist_seconds=3600.0) as (
            pod,
        ),
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        trainer = Trainer(pod)
        trainer.save(1, _state(b"x"))
        flushed = pool.submit(trainer.flush)
        refused = lambda: [  # noqa: E731 - one condition
            told for told in pod.told(names.EVENT_CHECKPOINT_WARNING) if "local rank 0" in told
        ]
        eventually(refused, what="a refusal")
        with contextlib.suppress(concurrent.futures.TimeoutError):
            pytest.fail(f"given up: {flushed.result(1.5)}")
        storage.unlink()
        assert flushed.result() == Ack()
        assert len(refused()) == 1
        assert "demo" in refused()[0]


def test_a_restored_step_that_is_not_durable_is_persisted_by_the_new_rank_0(tmp_path):
    """Rank 0's pod dies before it persisted; the survivor becomes rank 0 and flushes the step."""
    storage = tmp_path / "pvc"
    with checkpoint_pod.pods(tmp_path, 2, storage=storage, checkpoint_persist_seconds=0.0) as (
        first,
        second,
    ):
        trainers = [Trainer(first, 0, 2), Trainer(second, 1, 2)]
        trainers[1].save(7, _state(b"state"))
        survivor = Trainer(second, 0, 1)
        reply = survivor.restore(2)
        assert (reply.step, reply.source) == (7, "memory")
        assert survivor.flush().done
        assert (storage / "demo" / "step-000000000007-0-2-0" / "manifest.json").exists()


def test_steps_that_stay_for_good_are_persisted_whatever_the_pace(tmp_path):
    """The pace would allow one in an hour: of the others the first alone comes to storage."""
    storage = tmp_path / "pvc"
    given = {
        "checkpoint_persist_seconds": 3600.0,
        "checkpoint_keep": 1,
        "checkpoint_keep_every": 100,
    }
    with checkpoint_pod.pods(tmp_path, 1, storage=storage, **given) as (pod,):
        trainer = Trainer(pod)
        for step in (50, 100, 150, 200, 250):
            trainer.save(step, _state(b"%d" % step))
            if step in {50, 100, 200}:
                eventually(lambda step=step: step in _steps(storage), what=f"step {step}")
        eventually(lambda: _steps(storage) == [100, 200], what="retention has removed step 50")


def test_what_a_failure_left_in_memory_alone_is_persisted_at_once(tmp_path):
    """The pace would allow it in an hour; once it is durable, another restart writes nothing."""
    storage = tmp_path / "pvc"
    with checkpoint_pod.pods(tmp_path, 1, storage=storage, checkpoint_persist_seconds=3600.0) as (
        pod,
    ):
        trainer = Trainer(pod)
        assert trainer.restore(1).step is None
        folders = storage / "demo"
        trainer.save(1, _state(b"first"))
        eventually((folders / "step-000000000001-1" / "manifest.json").exists)
        trainer.save(2, _state(b"second"))
        reply = trainer.restore(2)
        assert (reply.step, reply.source) == (2, "memory")
        eventually((folders / "step-000000000002-0-2-0" / "manifest.json").exists)
        assert trainer.wait(2, "durable").done  # the coordinator knows, too
        assert trainer.restore(3).step == 2
        trainer.save(3, _state(b"third"))
        assert trainer.flush().done
        assert sorted(folder.name for folder in folders.glob("step-*")) == [
            "step-000000000001-1", "step-000000000002-0-2-0", "step-000000000003-3",
        ]  # fmt: skip


def test_a_flush_finds_what_the_coordinator_could_not_see_at_first(tmp_path):
    """Its sidecar began anew while storage could not be read, and nothing was saved since."""
    storage = tmp_path / "pvc"
    with checkpoint_pod.pods(tmp_path, 1, storage=storage) as (pod,):
        trainer = Trainer(pod)
        trainer.save(100, _state(b"100"))
        assert trainer.wait(100, "durable").done
        pod.kill()
        (storage / "demo").rename(storage / "away")
        (storage / "demo").write_text("no folder")
        pod.start()
        (storage / "demo").unlink()
        (storage / "away").rename(storage / "demo")
        assert trainer.flush().done
        assert trainer.wait(100, "durable").done


def test_persists_go_on_after_what_nobody_foresaw(tmp_path):
    """The system refuses a file for a while, as where descriptors are used up: steps become durable
    again when it does not."""
    with checkpoint_pod.pods(tmp_path, 1, storage=tmp_path / "pvc") as (pod,):
        trainer = Trainer(pod)
        trainer.save(1, _state(b"x"))
        assert trainer.wait(1, "durable").done
        control = trainer.arena.directory / "control"
        aside = control.rename(control.with_name("aside"))
        control.symlink_to(aside)
        log = pod.settings.volume_path / checkpoint_pod.LOG
        eventually(lambda: "Persister.run failed" in log.read_text(), what="it is told in the log")
        control.unlink()
        aside.rename(control)
        trainer.save(2, _state(b"y"))
        assert trainer.wait(2, "durable").done


def test_a_slot_that_cannot_be_read_is_told(tmp_path):
    """Training goes on and would end with nothing on storage: a Warning says why."""
    with checkpoint_pod.pods(
        tmp_path, 1, storage=tmp_path / "pvc", checkpoint_persist_seconds=0.0
    ) as (pod,):
        Trainer(pod).save(1, b"no snapshot")
        warned = functools.partial(pod.told, names.EVENT_CHECKPOINT_WARNING)
        eventually(warned, what="a Warning")
        assert "header" in warned()[0]


def test_what_a_process_takes_up_is_persisted_once_it_had_time_to(tmp_path):
    """Both at once keep the job waiting longer: a second a GiB, at the least, lies between."""
    storage = tmp_path / "pvc"
    given = {"checkpoint_persist_seconds": 3600.0, "arena_bytes": 600 << 20}
    with checkpoint_pod.pods(tmp_path, 1, storage=storage, **given) as (pod,):
        trainer = Trainer(pod)
        assert trainer.restore(1).step is None
        folders = storage / "demo"
        trainer.save(1, _state(b"first"))
        eventually((folders / "step-000000000001-1" / "manifest.json").exists)
        seal = trainer.save(2, _state(bytes(256 << 20)))
        # Else the coordinator might hear of the save only once the round has begun, and name it.
        known = trainer.arena.record.read_checksum
        eventually(lambda: known(seal) is not None, every=0.01, what="the save's checksum")
        asked = time.monotonic()
        assert trainer.restore(2).step == 2
        eventually((folders / "step-000000000002-0-2-0").exists)
        assert time.monotonic() - asked >= 0.25


class FaultyPeers:
    """A coordinator that names one peer, and that peer, which gives something else each time."""

    def __init__(self, holding: SlotInfo, answers: list[tuple[str, bytes]]) -> None:
        self.holding, self.answers = holding, answers

    async def call_coordinator(self, path, message, reply):
        assert (path, message.rank, reply) == (names.PATH_COMMIT_RESOLVE, 1, RestoreStepReply)
        return RestoreStepReply(
            state=self.holding.state, source="peer", slots=(self.holding,), round=message.round
        )

    @contextlib.asynccontextmanager
    async def get(self, address, path, *, offset):
        asked = f"/v1/slots/2/0-3-9-1?checksum={self.holding.checksum}"
        assert (address, path) == ("peer:7411", asked)
        # It does not know what a range is: a pull that broke off gets the whole again.
        fault, body = ("whole", BODY) if offset else self.answers.pop(0)
        if fault == "unreachable":
            raise errors.ClusterUnavailable(address)
        yield FaultyStream(fault, body)


class FaultyStream:
    def __init__(self, fault: str, body: bytes) -> None:
        self.status = 404 if fault == "gone" else 200
        self.headers = {"X-Rover-Checksum": "1" if fault == "other" else str(crc32c.crc32c(BODY))}
        self._fault, self._body = fault, body

    async def chunks(self, size):
        assert size > len(self._body)
        yield self._body
        if self._fault == "broken off":
            raise errors.ClusterUnavailable("broken off")


BODY = b"the state of rank 4"
FAULTS = [
    ("unreachable", b""), ("gone", b""), ("other", BODY), ("broken off", BODY[:5]),
    ("short", BODY[:-1]), ("long", BODY + b"x"), ("flipped", BODY[:-1] + b"5"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0])
def test_what_a_peer_did_not_promise_is_never_sealed(tmp_path, fault):
    """A fault is tried again and then is an error, the slots empty; two faults and then the bytes
    are a restore."""
    holding = SlotInfo(
        pod="other", address="peer:7411", local_rank=2, rank=4, world_size=5,
        state=identities.state(9, 3), replicated=True, snapshot_bytes=len(BODY),
        checksum=crc32c.crc32c(BODY),
    )  # fmt: skip
    settings = checkpoint_pod.settings_of(tmp_path)
    slots = PodSlots(settings)
    request = RestoreRequest(local_rank=0, rank=1, world_size=5, round=identities.round_id(4))
    for answers in ([fault] * 3, [fault, fault, ("", BODY)]):
        story = checkpoint_pod.Told()
        peers = FaultyPeers(holding, answers)
        given = settings, SlotVerifier(slots), None, peers, story
        restorer = Restorer(*given, server=SlotServer(slots))
        if answers[-1] == fault:
            with pytest.raises((errors.ClusterUnavailable, errors.CorruptSnapshot)):
                asyncio.run(restorer.restore(request))
            assert slots.arena(0).sealed() == ()
            assert story.lines == []
        else:
            reply = asyncio.run(restorer.restore(request))
            assert (reply.step, reply.source, _content(reply)) == (9, "peer", BODY)
            (seal,) = slots.arena(0).sealed()
            assert (seal.rank, seal.state, seal.replicated) == (1, identities.state(9, 3), True)
            assert [reason for reason, _, _ in story.lines] == [names.EVENT_RESTORED]
        assert answers == []


class OneAway:
    """Three peers hold the state; the first, to which the coordinator sends, cannot be reached."""

    def __init__(self, holdings: list[SlotInfo]) -> None:
        self.holdings, self.asked = holdings, []

    async def call_coordinator(self, _path, message, _reply):
        first, *others = self.holdings
        return RestoreStepReply(
            round=message.round,
            state=first.state,
            source="peer",
            slots=(first,),
            alternatives=tuple(others),
        )

    @contextlib.asynccontextmanager
    async def get(self, address, *_, **__):
        self.asked.append(address)
        if address == self.holdings[0].address:
            raise errors.ClusterUnavailable(address)
        yield FaultyStream("", BODY)


def test_a_peer_that_cannot_be_reached_is_not_the_only_one(tmp_path):
    """The same state is had from the next that holds it."""
    holdings = [
        SlotInfo(
            pod=f"pod-{rank}", address=f"peer-{rank}:7411", local_rank=2, rank=rank, world_size=5,
            state=identities.state(9, 0), replicated=True, snapshot_bytes=len(BODY),
            checksum=crc32c.crc32c(BODY),
        )
        for rank in range(3)
    ]  # fmt: skip
    settings, peers = checkpoint_pod.settings_of(tmp_path), OneAway(holdings)
    slots = PodSlots(settings)
    given = settings, SlotVerifier(slots), None, peers, checkpoint_pod.Told()
    restorer = Restorer(*given, server=SlotServer(slots))
    request = RestoreRequest(local_rank=0, rank=4, world_size=5, round=identities.round_id(4))
    assert _content(asyncio.run(restorer.restore(request))) == BODY
    assert peers.asked == ["peer-0:7411", "peer-1:7411"]


@pytest.mark.parametrize("made_in", [1, 2])
def test_what_went_with_a_pod_is_read_from_storage(tmp_path, made_in):
    """The only pod that had the step ends between the choice and the copy: the same state is on
    storage. One of another round with that number is not the same."""
    storage, content = tmp_path / "pvc", _state(b"of all ranks")
    with checkpoint_pod.pods(tmp_path, 1, storage=storage) as (pod,):
        Trainer(pod).save(9, content)
        assert Trainer(pod).flush() == Ack()
    gone = SlotInfo(
        pod="gone", address="peer:7411", local_rank=0, rank=0, world_size=1,
        state=identities.state(9, made_in), replicated=True, snapshot_bytes=len(content),
        checksum=1,
    )  # fmt: skip
    settings = checkpoint_pod.settings_of(tmp_path / "other", checkpoint_path=str(storage))
    slots, story = PodSlots(settings), checkpoint_pod.Told()
    given = SlotVerifier(slots), DirectoryStorage(storage / "demo"), OneAway([gone]), story
    restorer = Restorer(settings, *given, server=SlotServer(slots))
    request = RestoreRequest(local_rank=0, rank=0, world_size=1, round=identities.round_id(2))
    if made_in == 2:
        with pytest.raises(errors.ClusterUnavailable):
            asyncio.run(restorer.restore(request))
        return
    reply = asyncio.run(restorer.restore(request))
    assert (reply.step, reply.source, _content(reply)) == (9, "storage", content)
    assert "from storage in round 2" in story.lines[-1][1]


def test_bad_requests_are_refused_by_name(tmp_path):
    """A body that is no message, an unknown level, a negative size: InputError or ProtocolError."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        trainer = Trainer(pod)
        with pytest.raises(errors.InputError, match="negative"):
            trainer.allocate(-1)
        with pytest.raises(errors.ProtocolError, match="local_rank"):
            trainer.link.request(names.PATH_ARENA, Ack(), Ack, timeout=10)
        with pytest.raises(errors.ArenaTooSmall, match="annotation"):
            trainer.allocate(1 << 40)
