# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The catalogue of failures, brought about: one job dies in every way that needs no GPU.

Two pods with one process each. In every round rank 1 fails in the next way (in some rank 0 does, by
it), and the job's Events must say what that was and which rank was first.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Iterator

import pytest
from testcluster import settings

from rover_kf.api import names
from rover_kf.api.jobs import Event
from tests.support import memory_group
from tests.support.failure_cases import PROCESSES
from tests.support.pods.launcher_pods import Job, show

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

FAILING = '''
import argparse, ctypes, datetime, json, mmap, os, pathlib, resource, signal, socket, sys, time
import torch, torch.distributed as dist, torch.utils.data
from rover_kf import Checkpointer

full, mark = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
rank, round_ = int(os.environ["RANK"]), int(os.environ["ROVER_ROUND"])

together = set()
"""Ways that both ranks go; of the others rank 1 alone, and rank 0 does nothing."""

def both(way):
    together.add(way)
    return way

def idle():
    while True:
        signal.pause()

def group():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    dist.all_reduce(torch.ones(1))

@both
def killed_after_a_step():
    checkpointer = Checkpointer()
    state = {"model": torch.nn.Linear(4, 4)}
    checkpointer.restore(state)
    checkpointer.step(1, state)
    checkpointer.close()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    idle()

def terminated():
    os.kill(os.getpid(), signal.SIGTERM)

def null_pointer():
    ctypes.string_at(0)

def aborted():
    os.abort()

def bus_error():
    with (full / "sparse").open("w+b") as file:
        file.truncate(1 << 20)
        with mmap.mmap(file.fileno(), 1 << 20) as mapped:
            for offset in range(0, 1 << 20, 4096):
                mapped[offset] = 1

def exited():
    sys.exit(1)

def wrong_arguments():
    parser = argparse.ArgumentParser("train.py")
    parser.add_argument("--epochs", type=int)
    parser.parse_args(["--epochs=many"])

def missing_import():
    import nowhere_to_be_found

def syntax_error():
    exec("for step in range(3) print(step)")

def assertion():
    assert rank == 0, "the batch has no labels"

@both
def peer_killed():
    group()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))

@both
def cause_comes_late():
    """Rank 1 hangs up, and raises only when rank 0 has failed for it."""
    group()
    if rank == 1:
        dist.destroy_process_group()
        while not mark.exists():
            time.sleep(0.001)
        raise ZeroDivisionError("the root of it")
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        mark.touch()
        raise

@both
def peer_hung_up():
    group()
    if rank == 1:
        dist.destroy_process_group()
        idle()
    dist.all_reduce(torch.ones(1))

def store_lost():
    ours, theirs = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(theirs, str(store.port).encode())
        idle()
    store = dist.TCPStore("127.0.0.1", int(os.read(ours, 16)), is_master=False)
    os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)
    store.get("anything")

@both
def collective_timeout():
    group()
    if rank == 1:
        idle()
    # Only now: to connect may take longer on a busy machine.
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1))
    dist.all_reduce(torch.ones(1))

def volume_full():
    with (full / "checkpoint.pt").open("wb") as file:
        torch.save(torch.zeros(1 << 18), file)

def limited():
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)

def no_memory_for_python():
    limited()
    bytearray(1 << 30)

def no_memory_for_torch():
    limited()
    torch.ones(1 << 28)

def unknown_host():
    socket.create_connection(("nowhere.invalid", 80))

def unknown_master():
    os.environ["MASTER_ADDR"] = "nowhere.invalid"
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=1))

def too_many_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    files = [open(os.devnull) for _ in range(100)]

class Deadly(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)

def loader_killed():
    list(torch.utils.data.DataLoader(Deadly(), num_workers=1))

class Greedy(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return b"x" * (4 << 30)

def loader_without_memory():
    list(torch.utils.data.DataLoader(Greedy(), num_workers=1))

def shared_memory_full():
    """On a machine of its own whose /dev/shm has 64 KiB."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, private, recursive = 0x20000, 0x40000, 0x4000
    assert libc.unshare(new_namespace) == 0
    assert libc.mount(b"none", b"/", None, private | recursive, None) == 0
    assert libc.mount(b"none", b"/dev/shm", b"tmpfs", 0, b"size=64k") == 0
    rows = torch.utils.data.TensorDataset(torch.ones(64, 1 << 14))
    list(torch.utils.data.DataLoader(rows, batch_size=16, num_workers=1))

def nccl_refuses():
    os.environ["NCCL_SOCKET_IFNAME"] = "=none0"
    torch.cuda.nccl.unique_id()

def gpu_missing():
    torch.ones(1, device="cuda")

def missing_file():
    open("no-such-data.bin")

def gpu_lost():
    sys.stderr.write("NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.\\n")
    os.abort()

def wrong_data():
    raise ValueError("sample 4711 has 3 columns")

way = globals()[sys.argv[3].split(",")[round_ - 1]]
sys.stderr.write(f"round {round_}: {way.__name__}\\n")
(way if rank == 1 or way in together else idle)()
'''

REPLACED = 2
"""How often the container is no use any more: a GPU is missing, another one broken."""
MEMORY_MEBIBYTES = 2048


@pytest.fixture
def memory(full) -> Iterator[tuple[str, ...]]:
    """What limits the memory of a launcher and all that it starts."""
    del full  # root is there
    with memory_group.limited(MEMORY_MEBIBYTES) as command:
        yield command


@pytest.fixture
def full() -> Iterator[pathlib.Path]:
    """A volume of 64 KiB."""
    if os.geteuid() != 0:
        reason = "not root: a volume that is soon full cannot be mounted"
        if settings.in_ci():
            pytest.fail(reason)
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=True)
        try:
            yield pathlib.Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def test_every_way_to_fail(full, memory):
    """Each way is recognised and blamed on the rank that was first; the same error twice in the
    same place ends the job at once, with its traceback, whatever is left of the budget. Where the
    container is no use any more, its launcher ends with the code that has it replaced."""
    with Job(2, min_nodes=2, restarts=100, policy={"failures.max-backoff": "0"}) as job:
        ways = ",".join(way.name for way in PROCESSES)
        command = (job.script(FAILING), str(full), str(job.folder / "mark"), ways)
        job.add(0, *command)
        job.add(1, *command, inside=memory)
        for _ in range(REPLACED):
            assert job.pods[1].wait(120) == names.EXIT_RETRY
            job.pods[1].start_launcher(*command, inside=memory)
        codes = [pod.wait(120) for pod in job.pods.values()]
        status = job.status()
        told = _by_round(status.events)
        for number, told_now in told.items():
            show(f"round {number}", [line[:160] for line in told_now])
        assert codes == [names.EXIT_USER_ERROR] * 2
        for number, way in enumerate(PROCESSES, 1):
            begin = f"rank {way.rank} in train-worker-{way.rank}: {way.kind}: "
            found = [line for line in told[number] if line.startswith(begin)]
            assert len(found) == 1, (number, way, told[number])
            assert way.words in found[0]
            others = [line for line in told[number] if line not in found]
            assert all(line.startswith("rank 0 in train-worker-0: peer_lost: ") for line in others)
        assert status.verdict.startswith("the same error in the same place again")
        assert "train.py" in status.verdict
        assert status.verdict.endswith("ValueError: sample 4711 has 3 columns")
        # The pipe between process and log changes nothing of what people see.
        text = job.pods[1].text()
        assert re.findall(r"^round (\d+): (\w+)$", text, re.MULTILINE) == [
            (str(number), way.name) for number, way in enumerate(PROCESSES, 1)
        ]
        assert "\ntrain.py: error: argument --epochs: invalid int value: 'many'\n" in text


def _by_round(events: tuple[Event, ...]) -> dict[int, list[str]]:
    told: dict[int, list[str]] = {}
    number = 0
    for event in events:
        if event.reason == names.EVENT_WORLD_FORMED:
            number = int(re.match(r"round (\d+)", event.message)[1])
        elif event.reason == names.EVENT_PROCESS_FAILED:
            told.setdefault(number, []).append(event.message)
    return told
