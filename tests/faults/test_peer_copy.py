# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A chief's newest save is also in a parameter server's pod, and comes back from there."""

from __future__ import annotations

import pathlib
import shutil
import signal
import time
import types

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import RestorableStepsReply, RestorableStepsRequest
from rover_kf.checkpoint.format import snapshot
from rover_kf.coordinator.replication.placement import COPY_TIMEOUT_SECONDS
from tests.support.pods.bare_trainer import Trainer
from tests.support.pods.sidecar_pods import SidecarPod, ended, job_folder
from tests.support.waiting import eventually

SIZE = 3 << 20
ARENA = 16 << 20


class Job:
    """A chief and the parameter server that keeps its copy.

    Args:
        folder: of the job.
        place: its addresses' first three numbers.
        storage: None: the chief has none.
    """

    def __init__(
        self, folder: pathlib.Path, place: str, storage: pathlib.Path | None = None
    ) -> None:
        self.folder, self.storage = folder, storage
        self.chief_at, self.keeper_at = f"{place}.1", f"{place}.2"
        self.made: list[SidecarPod] = []

    def chief(self, uid: str) -> SidecarPod:
        """A new pod of it, with an empty volume."""
        settings = {
            names.ENV_POD_NAME: "train-chief-0",
            names.ENV_REPLICA_TYPE: "chief",
            names.ENV_KEEPER: self.keeper_at,
            names.ENV_ARENA_BYTES: str(ARENA),
            "checkpoint.path": str(self.storage or ""),
            "checkpoint.persist-seconds": "3600",
        }
        return self._pod(self.chief_at, uid, settings)

    def keeper(self, uid: str) -> SidecarPod:
        """A new pod of it, with an empty volume; here its address is its name."""
        settings = {
            names.ENV_POD_NAME: self.keeper_at,
            names.ENV_REPLICA_TYPE: "ps",
            names.ENV_KEEPS: self.chief_at,
            names.ENV_ARENA_BYTES: str(ARENA // 2),
        }
        return self._pod(self.keeper_at, uid, settings)

    def _pod(self, address: str, uid: str, settings: dict[str, str]) -> SidecarPod:
        world = {names.ENV_NODES: "1", names.ENV_MAX_NODES: "1"} | settings
        pod = SidecarPod(self.folder, 0, address, address, uid, settings=world)
        self.made.append(pod)
        return pod.start().ready()


@pytest.fixture
def job():
    """Without storage."""
    with job_folder() as (folder, place):
        made = Job(folder, place)
        yield made
        with ended(*made.made):
            pass


@pytest.fixture
def stored_job(tmp_path):
    """With a folder, to which little is persisted by itself."""
    with job_folder() as (folder, place):
        made = Job(folder, place, tmp_path / "storage")
        made.storage.mkdir()
        yield made
        with ended(*made.made):
            pass


def trainer_of(pod: SidecarPod) -> Trainer:
    """The pod's training process."""
    return Trainer(types.SimpleNamespace(settings=types.SimpleNamespace(volume_path=pod.home)))


def state(number: int) -> bytes:
    """A snapshot of one tensor."""
    layout = snapshot.plan([snapshot.Entry("content", "U8", (SIZE,), 1)], {})
    return snapshot.header(layout, {}) + bytes([number]) * SIZE


def lose(pod: SidecarPod) -> None:
    """A pod with its memory."""
    pod.kill()
    shutil.rmtree(pod.home)


def told(pod: SidecarPod) -> list[str]:
    """What its coordinator says of restores."""
    found = pod.status().events
    return [event.message for event in found if event.reason == names.EVENT_RESTORED]


def held(trainer: Trainer) -> tuple[int, ...]:
    """Steps that could still be restored, as the sidecar knows."""
    return trainer.link.request(
        names.PATH_HELD, RestorableStepsRequest(0), RestorableStepsReply, timeout=30
    ).steps


def content(reply) -> bytes:
    """The bytes that were restored."""
    return pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]


def saved_and_copied(job: Job, uid: str, step: int) -> SidecarPod:
    """A chief whose save is also at the keeper's."""
    chief = job.chief(uid)
    trainer = trainer_of(chief)
    trainer.restore(1)
    trainer.save(step, state(step), replicated=False)
    assert trainer.wait(step, "replica").done
    return chief


@pytest.mark.parametrize("replicated", [False, True])
def test_a_lost_chief_comes_back_from_the_server(job, replicated):
    """Bit by bit the newest save, from memory alone, whatever kind of state it is; and on it goes:
    the next save of the new chief replaces the copy, and comes back to a third one."""
    job.keeper("ps-a")
    first = job.chief("chief-a")
    trainer = trainer_of(first)
    assert trainer.restore(1).step is None
    for step in (5, 6, 7):
        trainer.save(step, state(step), replicated=replicated)
    assert trainer.wait(7, "replica").done
    for uid, step in (("chief-b", 7), ("chief-c", 8)):
        lose(job.made[-1])
        chief = job.chief(uid)
        trainer = trainer_of(chief)
        reply = trainer.restore(1)
        assert (reply.step, reply.source, content(reply)) == (step, "peer", state(step))
        assert any(f"resumes at step {step} from peer" in message for message in told(chief))
        trainer.save(step + 1, state(step + 1), replicated=replicated)
        assert trainer.wait(step + 1, "replica").done


def test_a_chief_that_was_not_lost_goes_on_from_its_own_memory(job):
    """Also where the copy is of the same step."""
    job.keeper("ps-a")
    chief = saved_and_copied(job, "chief-a", 4)
    reply = trainer_of(chief).restore(2)
    assert (reply.step, reply.source, content(reply)) == (4, "memory", state(4))


def test_a_keeper_that_is_killed_in_its_pod_still_has_the_copy(job):
    """Its memory is the pod's, not the process'."""
    keeper = job.keeper("ps-a")
    chief = saved_and_copied(job, "chief-a", 4)
    keeper.kill()
    keeper.start().ready()
    lose(chief)
    reply = trainer_of(job.chief("chief-b")).restore(1)
    assert (reply.step, reply.source, content(reply)) == (4, "peer", state(4))


def test_a_new_keeper_gets_the_newest_save_without_another_one(job):
    """A parameter server's pod is lost after the save, then the chief's."""
    keeper = job.keeper("ps-a")
    chief = saved_and_copied(job, "chief-a", 4)
    lose(keeper)
    after = job.keeper("ps-b")
    slot = after.home / names.ARENA_DIR / f"{names.REPLICA_PLACE}0" / "slot-0"
    eventually(slot.exists, within=30, what="the new server copies")
    assert trainer_of(chief).wait(4, "replica").done
    lose(chief)
    reply = trainer_of(job.chief("chief-b")).restore(1)
    assert (reply.step, reply.source, content(reply)) == (4, "peer", state(4))


def test_the_next_save_goes_to_a_new_keeper(job):
    """What was saved while there was none is not needed for that."""
    keeper = job.keeper("ps-a")
    chief = saved_and_copied(job, "chief-a", 4)
    lose(keeper)
    trainer = trainer_of(chief)
    trainer.save(5, state(5), replicated=False)
    job.keeper("ps-b")
    trainer.save(6, state(6), replicated=False)
    assert trainer.wait(6, "replica").done
    lose(chief)
    reply = trainer_of(job.chief("chief-b")).restore(1)
    assert (reply.step, content(reply)) == (6, state(6))


def test_without_its_keeper_a_new_chief_takes_what_is_stored(stored_job):
    """Within seconds, of a keeper that is gone and of one that hears and says nothing."""
    keeper = stored_job.keeper("ps-a")
    chief = saved_and_copied(stored_job, "chief-a", 4)
    assert trainer_of(chief).wait(4, "durable").done
    trainer = trainer_of(chief)
    trainer.save(9, state(9), replicated=False)
    assert trainer.wait(9, "replica").done
    keeper.signal(signal.SIGSTOP)
    for uid in ("chief-b", "chief-c"):
        lose(stored_job.made[-1] if uid == "chief-c" else chief)
        after = stored_job.chief(uid)
        begun = time.monotonic()
        reply = trainer_of(after).restore(1)
        assert time.monotonic() - begun < 20
        assert (reply.step, reply.source, content(reply)) == (4, "storage", state(4))
        assert "no copy from" in after.log.read_text()
        if uid == "chief-b":
            lose(keeper)


def test_storage_goes_before_an_older_copy(stored_job):
    """What the server keeps was not renewed any more; the state is the newest all the same."""
    keeper = stored_job.keeper("ps-a")
    chief = saved_and_copied(stored_job, "chief-a", 4)
    keeper.kill()
    trainer = trainer_of(chief)
    trainer.save(8, state(8), replicated=False)
    assert trainer.wait(8, "durable").done
    lose(chief)
    keeper.start().ready()
    reply = trainer_of(stored_job.chief("chief-b")).restore(1)
    assert (reply.step, reply.source, content(reply)) == (8, "storage", state(8))


def test_a_lost_keeper_holds_up_no_persist(stored_job):
    """It is stopped with an order of its own: other steps wait for that for half a minute, then
    they are persisted."""
    keeper = stored_job.keeper("ps-a")
    trainer = trainer_of(saved_and_copied(stored_job, "chief-a", 4))
    keeper.signal(signal.SIGSTOP)
    for step in (5, 6, 7):
        trainer.save(step, state(step), replicated=False)
    done = lambda: trainer.wait(7, "durable").done  # noqa: E731 - of one line
    eventually(done, within=4 * COPY_TIMEOUT_SECONDS, what="step 7 is durable")


def test_a_keeper_that_never_came_holds_up_nothing(stored_job):
    """Neither the restore of a job that begins nor a persist, of whichever step."""
    trainer = trainer_of(stored_job.chief("chief-a"))
    begun = time.monotonic()
    assert trainer.restore(1).step is None
    for step in (5, 6, 7):
        trainer.save(step, state(step), replicated=False)
    assert trainer.wait(7, "durable").done
    assert time.monotonic() - begun < COPY_TIMEOUT_SECONDS


def test_a_damaged_copy_is_offered_to_nobody(stored_job):
    """A byte has changed in the server's memory: the new chief takes what is stored."""
    keeper = stored_job.keeper("ps-a")
    chief = saved_and_copied(stored_job, "chief-a", 4)
    trainer = trainer_of(chief)
    assert trainer.wait(4, "durable").done
    trainer.save(9, state(9), replicated=False)
    assert trainer.wait(9, "replica").done
    slot = keeper.home / names.ARENA_DIR / f"{names.REPLICA_PLACE}0" / "slot-0"
    with slot.open("r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"\xff")
    lose(chief)
    reply = trainer_of(stored_job.chief("chief-b")).restore(1)
    assert (reply.step, reply.source, content(reply)) == (4, "storage", state(4))
    warned = [event.message for event in keeper.status().events if event.warning]
    assert any("CRC-32C" in message for message in warned)


def test_a_keeper_that_is_lost_after_the_choice_costs_a_round(stored_job):
    """The chief was told to take the copy, and its slot with it is gone as well: that restore is an
    error, the next round's goes to storage."""
    keeper = stored_job.keeper("ps-a")
    chief = saved_and_copied(stored_job, "chief-a", 4)
    trainer = trainer_of(chief)
    assert trainer.wait(4, "durable").done
    trainer.save(9, state(9), replicated=False)
    assert trainer.wait(9, "replica").done
    lose(chief)
    after = stored_job.chief("chief-b")
    trainer = trainer_of(after)
    assert trainer.restore(1).source == "peer"
    after.kill()  # it remembers the answer of its round
    shutil.rmtree(after.home / names.ARENA_DIR)
    lose(keeper)
    after.start().ready()
    with pytest.raises(errors.RoverError, match="cannot be reached"):
        trainer.restore(1)
    reply = trainer.restore(2)
    assert (reply.step, reply.source, content(reply)) == (4, "storage", state(4))


def test_the_step_of_the_copy_counts_as_held(job):
    """A chief that has lost its memory is told of it before it restores; where the keeper is away
    nobody can say what is held."""
    keeper = job.keeper("ps-a")
    lose(saved_and_copied(job, "chief-a", 4))
    trainer = trainer_of(job.chief("chief-b"))
    assert held(trainer) == (4,)
    keeper.kill()
    with pytest.raises(errors.ClusterUnavailable):
        held(trainer)
