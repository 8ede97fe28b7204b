# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's sidecar for real, killed, replaced and stopped; launchers are this test's."""

from __future__ import annotations

import concurrent.futures
import functools
import signal

import pytest

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.checkpoints import RestoreStepReply, RestoreStepRequest, SlotInfo
from rover_kf.api.membership import (
    Failure,
    JoinReply,
    JoinRequest,
    Member,
    Round,
    WatchReply,
    WatchRequest,
)
from rover_kf.sidecar.state_replica import REPLICA_FILE, StoredState
from tests.support.faults.switching_relay import SwitchingRelay
from tests.support.pods import checkpoint_pod
from tests.support.pods.bare_trainer import Trainer
from tests.support.pods.sidecar_pods import SidecarPod, ended, job_folder
from tests.support.states import identities
from tests.support.states.synthetic_states import Form
from tests.support.waiting import eventually


def join(pod: SidecarPod, life: int) -> Round:
    """What a launcher says until there is a round, in its so-manieth life."""
    member = Member(pod.name, f"{pod.uid}-{life}", pod.rank, 1)
    request = JoinRequest(member, pod.address, 29500)
    while True:
        reply = pod.ask(names.PATH_JOIN, request, JoinReply)
        if reply.round is not None:
            return reply.round


def form(pods: list[SidecarPod], life: int) -> Round:
    """All launchers join, each from its own pod."""
    with concurrent.futures.ThreadPoolExecutor(len(pods)) as launchers:
        rounds = set(launchers.map(lambda pod: join(pod, life), pods))
    (world,) = rounds
    return world


def fail(pod: SidecarPod, world: Round, life: int) -> WatchReply:
    """A training process dies of an error that has a place."""
    failure = Failure(
        *("error", "process", "restart", "it broke"),
        pod=pod.name,
        incarnation=f"{pod.uid}-{life}",
        round=world.number,
        rank=pod.rank,
        exit_code=1,
        signature="there",
    )
    return pod.ask(names.PATH_FAILURE, failure, WatchReply)


def watch(pod: SidecarPod, world: Round, life: int) -> WatchReply:
    """A launcher asks for news, and tells of its world where it is asked to."""
    request = WatchRequest(pod.name, f"{pod.uid}-{life}", world.number)
    reply = pod.ask(names.PATH_WATCH, request, WatchReply)
    if reply.action == "report":
        reported = WatchRequest(pod.name, f"{pod.uid}-{life}", world.number, world=world)
        reply = pod.ask(names.PATH_WATCH, reported, WatchReply)
    return reply


def copy_of(pod: SidecarPod):
    """The copy of the coordinator's state that the pod keeps."""
    path = pod.home / names.RUN_DIR / REPLICA_FILE
    return codec.loads(StoredState, path.read_bytes()).state if path.exists() else None


def test_what_a_coordinator_knew_outlives_it_and_a_stale_one_is_refused():
    """Killed, it goes on in its pod; lost with its pod, the next one takes another pod's copy:
    rounds, budget and the last error go on. The old one, alive after all, is answered by nobody."""
    with job_folder() as (folder, net):
        name = f"{net}.100"
        old, new = (
            SidecarPod(folder, 0, f"{net}.{host}", name, uid)
            for host, uid in ((1, "uid-0"), (50, "uid-0-again"))
        )
        others = [SidecarPod(folder, rank, f"{net}.{rank + 1}", name) for rank in (1, 2)]
        front = (name, names.PORT)
        with ended(old, new, *others), SwitchingRelay(front, (old.address, names.PORT)) as relay:
            for pod in (old, *others):
                pod.start()
            for pod in (old, *others):
                pod.ready()
            first = form([old, *others], life=1)
            assert fail(others[0], first, life=1).action == "restart"
            second = form([old, *others], life=2)
            assert (first.number, second.number) == (1, 2)

            # Its process is killed: it knows the round before anybody asks.
            old.kill()
            old.start().ready()
            status = old.status()
            assert (status.round, status.nodes, status.restarts) == (2, 3, 1)
            assert watch(others[0], second, life=2).action == "none"
            eventually(
                lambda: copy_of(others[0]) and copy_of(others[0]).rendezvous.number == 2,
                within=20,
                what="another pod keeps a copy",
            )

            # Its pod is cut off, another one has its place and nothing in its volume.
            old.signal(signal.SIGSTOP)
            new.start().ready()
            relay.switch((new.address, names.PORT))
            third = form([new, *others], life=3)
            assert (third.number, new.status().restarts) == (3, 1)

            # The old one comes back, and even its container anew: nobody takes its answers.
            old.signal(signal.SIGCONT)
            relay.switch((old.address, names.PORT))
            with pytest.raises(errors.ClusterUnavailable, match="replaced"):
                watch(others[0], third, life=3)
            with pytest.raises(errors.ClusterUnavailable, match="replaced"):
                join(old, life=3)
            old.kill()
            old.start().ready()
            with pytest.raises(errors.ClusterUnavailable, match="replaced"):
                watch(others[1], third, life=3)

            # The new one knows the error that the old one had seen.
            relay.switch((new.address, names.PORT))
            fourth = form([new, *others], life=4)
            assert fail(others[0], fourth, life=4).action == "closed"
            assert new.status().verdict.startswith("the same error in the same place again")


def test_a_restart_between_the_answers_of_one_round():
    """One rank has heard what to restore, and does not ask again; the coordinator is killed before
    the other has: its next one answers at once, and the same."""
    with job_folder() as (folder, net):
        pod = SidecarPod(folder, 0, f"{net}.1", f"{net}.1")

        def resolve(rank: int) -> RestoreStepReply:
            place = {"local_rank": 0, "rank": rank, "world_size": 2, "state": identities.state(7)}
            content = {"replicated": True, "snapshot_bytes": 9, "checksum": 9}
            held = SlotInfo(f"train-worker-{rank}", "nowhere:1", **place, **content)
            asked = RestoreStepRequest(
                round=identities.round_id(3), rank=rank, world_size=2, slots=(held,)
            )
            return pod.ask(names.PATH_COMMIT_RESOLVE, asked, RestoreStepReply, local=False)

        with ended(pod):
            pod.start().ready()
            with concurrent.futures.ThreadPoolExecutor(2) as ranks:
                first, second = ranks.map(resolve, (0, 1))
            assert (first.state.step, second.state.step) == (7, 7)
            pod.kill()
            pod.start().ready()
            assert resolve(1) == second


def _is_sealed(pod: SidecarPod, step: int) -> bool:
    return pod.status().sealed_step == step


def test_what_is_in_memory_is_told_to_a_coordinator_that_began_anew(tmp_path):
    """Both ranks have saved a step whose turn on storage is in an hour, and one waits for it: all
    that its coordinator had heard of it went with its process."""
    state = Form("sharded")
    with job_folder() as (folder, net):
        settings = {"checkpoint.path": str(tmp_path), "checkpoint.persist-seconds": "3600"}
        pods = [
            SidecarPod(folder, rank, f"{net}.{rank + 1}", f"{net}.1", settings=settings)
            for rank in (0, 1)
        ]
        with ended(*pods), concurrent.futures.ThreadPoolExecutor() as ranks:
            for pod in pods:
                pod.start()
            for pod in pods:
                pod.ready()
            seen = [checkpoint_pod.Pod(checkpoint_pod.settings_of(pod.home)) for pod in pods]
            trainers = [Trainer(pod, rank, 2) for rank, pod in enumerate(seen)]
            assert [*ranks.map(lambda trainer: trainer.restore(1).step, trainers)] == [None, None]
            for step in (1, 2):
                for rank, trainer in enumerate(trainers):
                    content = state.bytes_of(step, 1, rank)
                    trainer.save(step, content, replicated=False, pieces=True)
                told = functools.partial(_is_sealed, pods[0], step)
                eventually(told, what="the coordinator knows of the step")
                assert step == 2 or trainers[0].wait(step, "durable").done
            pods[0].kill()
            pods[0].start().ready()
            assert trainers[0].wait(2, "durable").done
            assert _is_sealed(pods[0], 2)
            assert trainers[0].wait(2, "replica").done
