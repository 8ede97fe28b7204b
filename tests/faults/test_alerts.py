# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Each alert about a job fires for its fault and clears after it, on a real Prometheus.

Sidecars and training processes are real, and so are the faults. Of the project's rule file all
ranges and all `for:` are divided by HURRY, as are the intervals of scrapes and evaluations: a
minute of the rules is a second here. The alerts about the controller are tried on the real cluster
(tests/cluster/test_alerts.py); all with their whole times, on made-up series, in
tests/unit/project/test_monitoring.py.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from rover_kf.api import names
from tests.support.pods.launcher_pods import TRAINING, Job, kill, show
from tests.support.servers.prometheus_server import prometheus, scrape_config
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

HURRY = 60.0
STILL, SLOW_STORAGE, BREAKING = "still", "slow-storage", "breaking"
"""Namespaces: one for each job."""
DRIFTING = TRAINING.replace(
    "    ones = torch.ones(1)",
    "    if rank == 1 and os.path.exists('drift'):\n"
    "        os.remove('drift')\n"
    "        with torch.no_grad():\n"
    "            state['model'].weight += 1\n"
    "    ones = torch.ones(1)",
)
ENDLESS, PACE = "1000000", "0.05"
SECOND = 2
SLOW_PACE = "0.4"
"""A step that is told of before the next one ends; of what told nothing, all is waiting."""


class Breaker:
    """Kills a job's training process at its second step, until it is told to stop: before one is
    sealed, so that the next process does the same steps again."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.kills = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        killed: set[float] = set()
        while not self._over.wait(0.05):
            steps = self._job.pods[0].steps()
            if steps and steps[-1]["step"] >= SECOND and steps[-1]["pid"] not in killed:
                killed.add(steps[-1]["pid"])
                with contextlib.suppress(ProcessLookupError):
                    kill(steps[-1]["pid"])
                    self.kills += 1


@pytest.fixture
def jobs() -> Iterator[dict[str, Job]]:
    with contextlib.ExitStack() as stack:
        still = {
            "hang.min-seconds": "4",
            "hang.pause-min-seconds": "4",
            "checkpoint.verify-replicas-every": "1",
        }
        yield {
            STILL: stack.enter_context(Job(2, min_nodes=2, policy=still)),
            SLOW_STORAGE: stack.enter_context(Job(1)),
            BREAKING: stack.enter_context(
                Job(1, restarts=10_000, policy={"failures.max-backoff": "0"})
            ),
        }


@pytest.fixture
def breaker(jobs) -> Iterator[Breaker]:
    made = Breaker(jobs[BREAKING])
    yield made
    made.stop()


@pytest.fixture
def server(jobs, tmp_path):
    targets = [
        {"targets": [f"{job.network}.{pod + 1}:{names.PORT}"], "labels": {"namespace": namespace}}
        for namespace, job in jobs.items()
        for pod in range(job.nodes)
    ]
    found = {"static_configs": targets}
    scraped = scrape_config("rover-kf-sidecars", "PodMonitor", found, hurry=HURRY)
    with prometheus(tmp_path, [scraped], hurry=HURRY) as running:
        yield running


class Watched:
    """Waits for alerts and remembers how long they took."""

    def __init__(self, server) -> None:
        self._server = server
        self.seconds: dict[str, float] = {}

    def fires(self, alert: str, namespace: str, within: float = 120.0) -> None:
        self._waits(alert, namespace, within, firing=True)

    def clears(self, alert: str, namespace: str, within: float = 150.0) -> None:
        self._waits(alert, namespace, within, firing=False)

    def _waits(self, alert: str, namespace: str, within: float, *, firing: bool) -> None:
        begun, word = time.monotonic(), "fires" if firing else "clears"
        eventually(
            lambda: ((alert, namespace) in self._server.firing()) is firing,
            within=within,
            what=f"{alert} of {namespace} {word}",
        )
        self.seconds[f"{alert} {word}"] = round(time.monotonic() - begun, 1)


def test_alerts_fire_and_clear(jobs, breaker, server):
    """A stopped rank, storage that fails, a process that is killed again and again, parameters that
    differ: each is told by its own alert alone, of its own job, and by none when it is over."""
    watched = Watched(server)
    still, stuck, breaking = jobs[STILL], jobs[SLOW_STORAGE], jobs[BREAKING]
    still.start(still.script(DRIFTING), ENDLESS, PACE)
    stuck.start(stuck.script(), ENDLESS, PACE)
    breaking.start(breaking.script(), ENDLESS, SLOW_PACE)
    breaker.start()
    still.stepping(0, 1)
    eventually(lambda: (stuck.status().durable_step or 0) > 0, within=120, what="a durable step")
    eventually(lambda: server.up() == 4, within=60, what="all sidecars are scraped")
    assert {found for found in server.firing() if found[1] in (STILL, SLOW_STORAGE)} == set()

    storage = stuck.folder / "storage"
    with swapped(storage):
        kill(still.pods[1].steps()[-1]["pid"], signal.SIGSTOP)
        watched.fires("RoverKfHang", STILL)
        watched.fires("RoverKfRestartStorm", BREAKING)
        watched.fires("RoverKfGoodputLow", BREAKING)
        breaker.stop()
        watched.fires("RoverKfCheckpointLag", SLOW_STORAGE)
        assert "CheckpointWarning" in stuck.events()
    watched.clears("RoverKfCheckpointLag", SLOW_STORAGE)

    (still.folder / "drift").touch()
    watched.fires("RoverKfReplicaMismatch", STILL)
    watched.clears("RoverKfHang", STILL)
    watched.clears("RoverKfRestartStorm", BREAKING)
    watched.clears("RoverKfReplicaMismatch", STILL)
    watched.clears("RoverKfGoodputLow", BREAKING)
    show("a minute of the rules is", f"{60 / HURRY:g} s")
    show("waited (s)", watched.seconds)
    show("training processes killed", breaker.kills)
    assert server.firing() <= {("RoverKfControllerDown", "")}
    lines = [line for job in jobs.values() for line in log_lines(job)]
    assert {(line["namespace"], line["job"]) for line in lines} == {("test", "train")}
    assert {line["pod"] for line in lines} == {"train-worker-0", "train-worker-1"}
    ranks = {line["rank"] for line in lines if "rank" in line}
    show("log lines", {"all": len(lines), "ranks": sorted(ranks)})
    assert ranks


def log_lines(job: Job) -> list[dict[str, object]]:
    """Each line that the sidecars of a job have logged is one object."""
    logs = (job.folder / f"{pod.index}.sidecar.log" for pod in job.pods.values())
    return [json.loads(line) for log in logs for line in log.read_text().splitlines()]


@contextlib.contextmanager
def swapped(folder: pathlib.Path) -> Iterator[None]:
    """A plain file is where the folder was, while the block runs: nothing can be written below."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.touch()
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)
