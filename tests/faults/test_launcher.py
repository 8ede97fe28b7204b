# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Launchers, sidecars and training processes for real, killed in every way."""

from __future__ import annotations

import dataclasses
import pathlib
import signal
import sys
import time

import pytest

from rover_kf.api import codec, names
from rover_kf.api.status import Ack, ScaleRequest, ServerLostRequest
from tests.support.pods.launcher_pods import Job, kill, show
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

PLAIN = """
import gc, os, sys, time
print("garbage", gc.isenabled(), gc.get_stats()[2]["collections"], gc.get_freeze_count() > 100_000)
import torch, torch.distributed as dist
print("ready", *sorted({"torch._dynamo", "rover_kf.trainer.checkpointer"} & sys.modules.keys()))
dist.init_process_group("gloo")
ones = torch.ones(1)
for step in range(1, int(sys.argv[1]) + 1):
    ones.fill_(1)
    dist.all_reduce(ones)
    time.sleep(0.02)
    # One write: lines of several processes must not mix.
    sys.stdout.write(f"step {step} rank {dist.get_rank()} of {int(ones.item())} pid {os.getpid()} "
                     f"round {os.environ['ROVER_ROUND']} at {time.time()}\\n")
dist.destroy_process_group()
"""


def test_all_ends_with_zero():
    """Two pods form one world, train to the end, store the last step, and both exit 0."""
    with Job(2, warm=False) as job:
        job.start(job.script(), "30", "0.01")
        assert [pod.wait() for pod in job.pods.values()] == [0, 0]
        for pod in job.pods.values():
            assert [line["step"] for line in pod.steps()] == list(range(1, 31))
        status = job.status()
        assert (status.phase, status.step, status.durable_step) == ("finished", 30, 30)
        assert status.goodput.total == pytest.approx(status.now - status.started_at, abs=0.01)
        metrics = job.ask(names.PATH_METRICS).decode()
        assert 'rover_kf_step{job="train"} 30.0' in metrics


def test_killed_process():
    """SIGKILL of a training process: all ranks step again from memory, no launcher restarts."""
    with Job(2) as job:
        job.start(job.script(), "100000", "0.02")
        job.stepping(0, 1)
        eventually(lambda: (job.status().sealed_step or 0) >= 10, within=120)
        last = job.pods[1].steps()[-1]
        killed_at = time.time()
        kill(last["pid"])
        seconds = job.stepping(0, 1, after=killed_at + 0.05) - killed_at
        show("kill_process_seconds", round(seconds, 3))
        assert seconds < 60
        again = next(s for s in job.pods[1].steps() if s["pid"] != last["pid"])
        assert again["step"] > last["step"] - 5 - 1
        assert all(pod.launcher and pod.launcher.poll() is None for pod in job.pods.values())
        assert "RoverError" not in job.pods[0].text()
        status = job.status()
        assert status.restarts == 1
        assert {names.EVENT_PROCESS_FAILED, names.EVENT_WORLD_FORMED} <= set(job.events())
        eventually(lambda: names.EVENT_RECOVERED in job.events(), within=120)
        spent = job.status().goodput
        show("spent", dataclasses.asdict(spent))
        assert min(spent.waiting, spent.productive, spent.recovery, spent.rendezvous) > 0
        assert spent.scaling == 0


def test_a_lost_server_is_a_new_round_once():
    """The controller tells that a server of the world's is gone: the same ranks begin anew and step
    again, no restart is counted, and the same pod told again changes nothing."""
    with Job(2) as job:
        job.start(job.script(), "100000", "0.02")
        job.stepping(0, 1)
        eventually(lambda: (job.status().sealed_step or 0) >= 10, within=120)
        told_at, lost = time.time(), ServerLostRequest("uid-of-a-server", "digits-ps-0 is removed")
        assert codec.loads(Ack, job.ask(names.PATH_LOST, lost)).done
        job.stepping(0, 1, after=told_at)
        eventually(lambda: job.status().round == 2, within=60)
        job.ask(names.PATH_LOST, lost)
        again_at = time.time()
        job.stepping(0, 1, after=again_at)
        status = job.status()
        assert (status.round, status.restarts) == (2, 0)
        assert all(pod.launcher and pod.launcher.poll() is None for pod in job.pods.values())


def test_third_joins_live():
    """A newcomer joins while the others train; they lose no step, and it restores from a peer."""
    with Job(2, warm=False) as job:
        job.start(job.script(), "100000", "0.02")
        job.stepping(0, 1)
        eventually(lambda: job.status().step > 0, within=120)
        job.add(2, job.script(), "100000", "0.02")
        job.stepping(0, 1, 2)
        steps = job.pods[0].steps()
        before = [line for line in steps if line["of"] == 2]
        after = [line for line in steps if line["of"] == 3]
        show("scale_up_pause_seconds", round(after[0]["at"] - before[-1]["at"], 3))
        assert after[0]["step"] == before[-1]["step"] + 1
        assert after[0]["at"] - before[-1]["at"] < 60
        status = job.status()
        assert (status.nodes, status.expected_nodes, status.restarts) == (3, 3, 0)
        assert (status.goodput.recovery, status.goodput.rendezvous) == (0, 0)
        assert status.goodput.scaling > 0


def test_scale_down_drains():
    """An announced scale-down drains: no step is lost; the pod idles, and SIGTERM ends it 143."""
    with Job(3) as job:
        job.start(job.script(), "100000", "0.02")
        job.stepping(0, 1, 2)
        eventually(lambda: job.status().step > 0, within=120)
        reply = codec.loads(Ack, job.ask(names.PATH_SCALE, ScaleRequest(2, "test")))
        assert reply.done
        job.stepping(0, 1)
        steps = job.pods[0].steps()
        before, after = ([s for s in steps if s["of"] == size] for size in (3, 2))
        show("scale_down_pause_seconds", round(after[0]["at"] - before[-1]["at"], 3))
        assert after[0]["step"] == before[-1]["step"] + 1
        drained = job.pods[2]
        eventually(lambda: "idle until SIGTERM" in drained.text(), within=120)
        assert drained.launcher is not None
        kill(drained.launcher.pid, signal.SIGTERM)
        assert drained.wait() == names.EXIT_DRAINED
        assert job.pods[0].steps()[-1]["of"] == 2


def test_sigterm_leaves():
    """SIGTERM to one launcher: all save at one step, it exits 143, the others go on from there."""
    with Job(3) as job:
        job.start(job.script(), "100000", "0.02")
        job.stepping(0, 1, 2)
        eventually(lambda: job.status().step > 0, within=120)
        leaver = job.pods[2]
        assert leaver.launcher is not None
        left_at = time.time()
        kill(leaver.launcher.pid, signal.SIGTERM)
        assert leaver.wait() == names.EXIT_DRAINED
        seconds = job.stepping(0, 1, after=left_at) - left_at
        show("sigterm_seconds", round(seconds, 3))
        eventually(lambda: _gone(leaver.steps()[-1]["pid"]), within=120)
        assert names.EVENT_MEMBER_LEFT in job.events()
        steps = job.pods[0].steps()
        before, after = ([s for s in steps if s["of"] == size] for size in (3, 2))
        assert after[0]["step"] == before[-1]["step"] + 1
        assert leaver.steps()[-1]["step"] == before[-1]["step"]
        assert job.status().restarts == 0


def test_sigterm_of_all():
    """A job that is deleted: every pod saves the same step, which is on storage when they end."""
    with Job(2) as job:
        job.start(job.script(), "100000", "0.02")
        job.stepping(0, 1)
        eventually(lambda: job.status().step > 0, within=120)
        for pod in job.pods.values():
            assert pod.launcher is not None
            kill(pod.launcher.pid, signal.SIGTERM)
        assert [pod.wait() for pod in job.pods.values()] == [names.EXIT_DRAINED] * 2
        (last,) = {pod.steps()[-1]["step"] for pod in job.pods.values()}
        assert job.status().durable_step == last


def test_second_sigterm_is_at_once():
    """A pod whose world cannot drain, since a step of it hangs, goes when it is told again."""
    with Job(2) as job:
        job.start(job.script(), "100000", "0.02")
        job.stepping(0, 1)
        eventually(lambda: job.status().step > 0, within=120)
        victim, leaver = job.pods.values()
        assert leaver.launcher is not None
        kill(victim.steps()[-1]["pid"], signal.SIGSTOP)
        kill(leaver.launcher.pid, signal.SIGTERM)
        eventually(lambda: job.status().phase == "draining", within=60)
        again_at = time.time()
        kill(leaver.launcher.pid, signal.SIGTERM)
        assert leaver.wait() == names.EXIT_DRAINED
        job.stepping(0, after=again_at)
        eventually(lambda: names.EVENT_MEMBER_LEFT in job.events(), within=60)


def test_killed_launcher_returns():
    """kill -9 of a launcher ends its processes; the rest goes on; it returns and is taken in."""
    with Job(2) as job:
        command = (job.script(), "100000", "0.02")
        job.start(*command)
        job.stepping(0, 1)
        victim = job.pods[1]
        worker = victim.steps()[-1]["pid"]
        assert victim.launcher is not None
        killed_at = time.time()
        kill(victim.launcher.pid)
        victim.wait()
        show("kill_launcher_seconds", round(job.stepping(0, after=killed_at) - killed_at, 3))
        assert _gone(worker)
        victim.start_launcher(*command)
        job.stepping(0, 1, after=time.time())


def test_only_allowed_sizes_train():
    """Of three pods two train, as two is the only size; the third has torch loaded and takes the
    place of one that dies at once, from what the other has in memory."""
    with Job(3, sizes="2") as job:
        job.start(job.script(), "100000", "0.02")
        eventually(lambda: sum(bool(pod.steps()) for pod in job.pods.values()) == 2, within=240)
        eventually(lambda: (job.status().sealed_step or 0) >= 10, within=120)
        training = [number for number, pod in job.pods.items() if pod.steps()]
        (spare,) = {0, 1, 2} - {*training}
        kept, victim = training[0], job.pods[training[1]]
        assert victim.launcher is not None
        killed_at = time.time()
        kill(victim.launcher.pid)
        victim.wait()
        seconds = job.stepping(kept, spare, after=killed_at) - killed_at
        show("spare_takes_over_seconds", round(seconds, 3))
        assert job.pods[spare].steps()[0]["step"] > 10
        assert job.status().nodes == 2


def test_coordinator_restarts():
    """The coordinator's sidecar is killed and comes back: the same processes train on, and the
    round is known again, so that a later death is still repaired."""
    with Job(2) as job:
        job.start(job.script(), "100000", "0.02")
        job.stepping(0, 1)
        number = job.status().round
        pids = {pod.steps()[-1]["pid"] for pod in job.pods.values()}
        first = job.pods[0]
        assert first.sidecar is not None
        first.sidecar.kill()
        first.sidecar.wait()
        back_at = time.time()  # before it starts: it may be there sooner than this process goes on
        first.start_sidecar()
        eventually(
            lambda: all(pod.steps()[-1]["at"] > back_at + 4 for pod in job.pods.values()),
            within=120,
        )
        assert {pod.steps()[-1]["pid"] for pod in job.pods.values()} == pids
        eventually(lambda: (job.status().round, job.status().nodes) == (number, 2), within=120)
        # Training went on, so the account did, too: as one.
        status = job.status()
        age = status.now - status.account_from
        assert status.account_from < back_at < status.started_at
        assert status.goodput.total == pytest.approx(age, abs=1e-5)
        assert status.goodput.recovery == 0
        killed_at = time.time()
        kill(job.pods[1].steps()[-1]["pid"])
        job.stepping(0, 1, after=killed_at + 0.05)
        assert job.status().round > number


def test_zygote_killed():
    """The process that others are forked from is killed: another is started, training resumes."""
    with Job(2, warm=False) as job:
        job.start(job.script(), "100000", "0.02")
        job.stepping(0, 1)
        launcher = job.pods[1].launcher
        assert launcher is not None
        children = pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
        zygote = int(children.read_text().split()[0])
        killed_at = time.time()
        kill(zygote)
        job.stepping(0, 1, after=killed_at + 0.1)
        assert launcher.poll() is None


def test_user_error_ends_the_job():
    """An ImportError ends the whole job at once: exit 1 everywhere, the traceback told."""
    with Job(2) as job:
        script = job.script("import nowhere_to_be_found\n")
        job.start(script)
        assert [pod.wait() for pod in job.pods.values()] == [names.EXIT_USER_ERROR] * 2
        assert "ModuleNotFoundError: No module named 'nowhere_to_be_found'" in job.pods[0].text()
        assert "runpy" not in job.pods[0].text()
        status = job.status()
        assert (status.phase, status.round) == ("failed", 1)
        assert "nowhere_to_be_found" in status.verdict
        told = [event for event in status.events if event.reason == names.EVENT_JOB_FAILED]
        assert "train.py" in told[0].message


def test_budget_ends_a_crash_loop():
    """A script that always fails is restarted as often as allowed, then the job fails with why."""
    with Job(1, restarts=2) as job:
        job.start(job.script("raise OSError('always')\n"))
        assert job.pods[0].wait() == names.EXIT_USER_ERROR
        assert job.pods[0].text().count("\nOSError: always\n") == 3
        assert "budget of 2 restarts" in job.status().verdict


def test_script_without_rover():
    """A stock script that reports nothing runs, survives a kill, and grows by a plain restart."""
    with Job(2, warm=False) as job:
        command = ("--nproc-per-node", "2", job.script(PLAIN), "100000")
        job.start(*command)
        job.stepping(0, 1, world=4)
        killed_at = time.time()
        kill(job.pods[0].steps()[-1]["pid"])
        job.stepping(0, 1, world=4, after=killed_at + 0.05)
        # What a script would wait for at its first checkpoint and DDP is loaded once a pod.
        assert "ready rover_kf.trainer.checkpointer torch._dynamo\n" in job.pods[0].text()
        # Nobody looked for garbage among what was loaded, nor will; the script's own is looked for.
        assert "garbage True 0 True\n" in job.pods[0].text()
        job.add(2, *command)
        job.stepping(0, 1, 2, world=6)


def test_a_program_that_is_no_script():
    """--no-python starts any program in each place; it is started again when it is killed, and
    ends the job as it ends. One that is not there says so, and no restart is spent on it."""
    with Job(2) as job:
        command = ("--no-python", sys.executable, job.script(PLAIN), "100000")
        job.start(*command)
        job.stepping(0, 1)
        assert "ready\n" in job.pods[0].text(), "nothing of ours is loaded in it"
        killed_at = time.time()
        kill(job.pods[1].steps()[-1]["pid"])
        job.stepping(0, 1, after=killed_at + 0.05)
        assert job.status().restarts == 1
    with Job(1) as job:
        job.add(0, "--no-python", "no-such-program")
        assert job.pods[0].wait() == names.EXIT_USER_ERROR
        assert "no-such-program cannot be started as a program" in job.pods[0].text()


def test_torch_is_not_loaded_before_the_script_if_it_says_so():
    """It runs as ever, in processes that find nothing of torch loaded; another word is refused."""
    bare = "import sys\nprint('before', 'torch' in sys.modules)\n" + PLAIN
    with Job(1) as job:
        job.add(0, job.script(bare), "20", inside=("env", "ROVER_PRELOAD=off"))
        assert job.pods[0].wait() == 0
        assert "before False\n" in job.pods[0].text()
        assert job.pods[0].steps()[-1]["step"] == 20
    with Job(1) as job:
        job.add(0, job.script(bare), "20", inside=("env", "ROVER_PRELOAD=no"))
        assert job.pods[0].wait() == names.EXIT_USAGE
        assert "ROVER_PRELOAD is 'no'; on or off is needed" in job.pods[0].text()


MANY_WORDS = """
import os
words = [f"word-{number}" for number in range(20)]
for line in range(2000):
    print("line", line, "of", os.environ["RANK"], *words, "end", flush=True)
print("no end of line", end="")
"""
NO_END = "no end of line"


def test_lines_of_ranks_do_not_mix():
    """Two ranks of one pod print lines of many words at once: each line comes whole to the pod's
    log, and so does a last one without its end."""
    with Job(1) as job:
        job.start("--nproc-per-node", "2", job.script(MANY_WORDS))
        assert job.pods[0].wait() == 0
        text = job.pods[0].text()
    # A rank may be done before the other one has begun: its last line then has no end of its own.
    lines = text.replace(NO_END, f"{NO_END}\n").splitlines()
    words = " ".join(f"word-{number}" for number in range(20))
    wanted = {f"line {line} of {rank} {words} end" for line in range(2000) for rank in (0, 1)}
    assert {line for line in lines if "word-" in line} == wanted
    assert lines.count(NO_END) == 2


def test_missing_script():
    """A script that is not there is refused with its name, and nothing is tried again."""
    with Job(1) as job:
        job.start("nothing.py")
        assert job.pods[0].wait() == names.EXIT_USER_ERROR
        assert "there is no script nothing.py" in job.pods[0].text()


def _gone(pid: float) -> bool:
    try:
        stat = pathlib.Path(f"/proc/{int(pid)}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # before its file was opened, or after
        return True
