# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Records of workers that come and go, lent by the chief's sidecar: real processes, with TLS and
without, and one that is killed."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.data import LeaseReply, LeaseRequest
from tests.support.faults.switching_relay import SwitchingRelay
from tests.support.pods.encrypted_pods import (
    NAME,
    folder_and_secret,
    impostor,
    pod,
    verifying,
)
from tests.support.pods.launcher_pods import show
from tests.support.pods.sidecar_pods import TOKEN, SidecarPod, ended
from tests.support.tls.authority import Authority
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

DATA = "a table that is secret"
RECORDS, BATCH, EPOCHS, PAUSE = 600, 8, 3, 0.05
CHIEF = f"""
import time
from rover_kf.trainer.tensorflow.shared_records import SharedRecords
records = SharedRecords({RECORDS}, batch={BATCH}, epochs={EPOCHS}, name={DATA!r})
while not records.finished:
    time.sleep(0.1)
records.close()
"""
WORKER = f"""
import json, sys, time
from rover_kf.trainer.tensorflow.shared_records import SharedRecords
for numbers in SharedRecords({RECORDS}, batch={BATCH}, epochs={EPOCHS}, name={DATA!r}):
    sys.stdout.write(json.dumps(numbers.tolist()) + "\\n")  # from here on the model has them
    sys.stdout.flush()
    time.sleep({PAUSE})
"""


class Program:
    """A training process of a pod, as the operator and the launcher would start it.

    Args:
        one: the pod.
        task: ``chief`` or ``worker``.
        index: of it.
    """

    def __init__(self, one: SidecarPod, task: str, index: int) -> None:
        self._log = one.folder / f"{task}-{index}.out"
        told = {"cluster": {"worker": {}, "ps": []}, "task": {"type": task, "index": index}}
        own = {names.ENV_HOME: str(one.home), "TF_CONFIG": json.dumps(told)}
        ours = {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
        with self._log.open("ab") as log:
            command = [sys.executable, "-c", CHIEF if task == "chief" else WORKER]
            self.process = subprocess.Popen(command, env=os.environ | own | ours, stdout=log)

    def batches(self) -> list[list[int]]:
        """Of it and of those before it."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def takes(self, batches: int) -> None:
        """Wait until it has taken so many in all."""
        eventually(lambda: len(self.batches()) >= batches, within=60, what=f"{batches} batches")

    def end(self) -> None:
        """If it runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Started:
    """A chief and two workers; leaves no process behind."""

    def __init__(self, chief: SidecarPod, workers: list[SidecarPod]) -> None:
        self.chief = Program(chief, "chief", 0)
        self.workers = [Program(one, "worker", index) for index, one in enumerate(workers)]
        self._pods, self._all = workers, [self.chief, *self.workers]

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._all:
            program.end()

    def again(self, index: int) -> None:
        """A worker's next program."""
        self.workers[index] = Program(self._pods[index], "worker", index)
        self._all.append(self.workers[index])


def _lent(chief: SidecarPod, index: int) -> tuple[int, ...]:
    """Records that a worker holds, once two looks are alike: what was on its way has arrived."""
    looks = [
        sum(one.outstanding for one in chief.status().data[0].workers if one.rank == str(index + 1))
        for _ in range(2)
    ]
    return (looks[0],) if looks[0] == looks[1] else ()


def _pods(folder: pathlib.Path, net: str, secret: Any, **more: Any) -> list[SidecarPod]:
    """A chief's, whose sidecar has the ledger, and two workers', which ask for it at .100."""
    names_of = {names.ENV_POD_NAME: "train-chief-0", names.ENV_REPLICA_TYPE: "chief"}
    chief = pod(folder, net, 0, secret, settings=names_of, **more)
    asking = {names.ENV_LEDGER: f"{net}.100"}
    return [
        chief,
        *(
            pod(folder, net, rank, secret, coordinator=f"train-worker-{rank}", settings=asking)
            for rank in (1, 2)
        ),
    ]


@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "plain"])
def test_a_worker_is_killed_and_who_listens_on_the_way_learns_nothing(encrypted):
    """Each record counts in each epoch, twice at most those that the killed worker was lent; the
    certificate is exchanged meanwhile. Neither the token nor the data set's name is among the bytes
    that pass; without TLS both are."""
    authority = Authority()
    with folder_and_secret(authority.secret(NAME)) as (folder, net, secret):
        more = {"tls": verifying(authority)} if encrypted else {}
        all_ = _pods(folder, net, secret if encrypted else None, **more)
        chief, *workers = all_
        front, back = (f"{net}.100", names.PORT), (chief.address, names.PORT)
        with ended(*all_), SwitchingRelay(front, back) as relay:
            for one in all_:
                one.start().ready()
            with Started(chief, workers) as started:
                for worker in started.workers:
                    worker.takes(5)
                secret.change(authority.secret(NAME))
                lost = started.workers[1]
                lost.process.send_signal(signal.SIGSTOP)
                (lent,) = eventually(lambda: _lent(chief, 1), what="what it was lent")
                known = len(lost.batches())
                lost.end()
                started.again(1)
                started.workers[1].takes(known + 5)
                for program in (started.chief, *started.workers):
                    assert program.process.wait(120) == 0
                batches = [batch for one in started.workers for batch in one.batches()]
        passed = bytes(relay.passed)
    counts = collections.Counter(number for batch in batches for number in batch)
    again = sum(counts.values()) - EPOCHS * RECORDS
    show("lent_when_killed_and_counted_twice", [lent, again])
    assert min(counts[number] for number in range(RECORDS)) == EPOCHS
    assert 0 <= again <= lent
    assert (TOKEN.encode() in passed) is not encrypted
    assert (DATA.encode() in passed) is not encrypted
    assert len(passed) > 10_000


def test_who_has_taken_the_ledgers_address_gets_no_token():
    """A certificate of another authority is refused by name, before a byte of the request."""
    authority = Authority()
    with folder_and_secret(authority.secret(NAME)) as (folder, net, secret):
        _, worker, _ = _pods(folder, net, secret)
        foreign = Authority("foreign").secret(NAME)
        with ended(worker), impostor(f"{net}.100", foreign, folder) as heard:
            worker.start().ready()
            request = LeaseRequest(DATA, 0, "1/x", 0, 1, 0)
            with pytest.raises(errors.ClusterUnavailable, match="its certificate is refused"):
                worker.ask(names.PATH_DATA_LEASE, request, LeaseReply)
            assert bytes(heard) == b""
