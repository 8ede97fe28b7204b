# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What one process measures in a pre-flight check: a multiplication, and an all-reduce.

Run by zygote.py in a child of its own, one for each training process that the pod will have. The
kernel ends it by SIGALRM when its time is over, whatever it hangs in.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import time
from collections.abc import Callable
from typing import Any

SPAN_SECONDS, SPANS = 0.12, 3
"""The best of several means, each longer than the kernel's period of CPU shares (0.1 s)."""
WARM_UPS = 2
CPU_SIZE, GPU_SIZE = 512, 8192
"""Rows of the square matrices: some milliseconds on a core, two on an H100."""
CPU_FLOATS, GPU_FLOATS = 1 << 20, 1 << 24
"""That are reduced."""
REDUCTIONS = 4
"""Of a span: all processes have to make as many."""
ONES_EVERY = 64
"""One of so many factors is a one: sums stay small, and exact in every number format."""


def run(task: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Measure, send the event, and end this process.

    ``task`` has a CheckTask's fields with this process's ``rank``, ``local_rank`` and
    ``variables``. ``send`` is called twice, with what is known then.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, task["seconds"])
    os.environ.update(task["variables"])
    found: dict[str, Any] = {
        "event": "checked",
        "round": task["round"],
        "local_rank": task["local_rank"],
        "done": False,
    }
    if task["alone"]:
        try:
            found |= _measure_matmul(task["local_rank"])
        except Exception as error:  # noqa: BLE001 - whatever a broken device raises is the result
            found["matmul_problem"] = f"a matmul failed: {_error_text(error)}"
        send(found)  # what comes may never end
    try:
        if task["world_size"] and "matmul_problem" not in found:
            found["all_reduce_seconds"] = _measure_all_reduce(task)
    except Exception as error:  # noqa: BLE001 - the same of a broken network
        found["all_reduce_problem"] = _error_text(error)
    send({**found, "done": True})
    os._exit(0)


def _measure_matmul(local_rank: int) -> dict[str, Any]:
    import torch  # noqa: PLC0415 - loaded by the zygote

    gpu = torch.cuda.is_available()
    size = GPU_SIZE if gpu else CPU_SIZE
    device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
    kind = torch.float16 if gpu else torch.float32
    index = torch.arange(size, device=device)
    places = index[:, None] + index[None, :]
    left = (places % ONES_EVERY == 0).to(kind)
    right = (places % 2).to(kind)
    # In each row of the one every ONES_EVERY-th column counts, and they all have one parity.
    expected = (places % 2).to(kind) * (size // ONES_EVERY)

    def multiply() -> Any:
        product = left @ right
        if gpu:
            torch.cuda.synchronize(device)
        return product

    for _ in range(WARM_UPS):
        multiply()
    seconds = min(_mean(multiply) for _ in range(SPANS))
    product = multiply()
    threads = torch.get_num_threads()
    name = torch.cuda.get_device_name(device) if gpu else f"cpu, {threads} threads"
    found: dict[str, Any] = {"device": name, "matmul_seconds": seconds}
    if not torch.equal(product, expected):
        wrong = int((product != expected).sum())
        found["matmul_problem"] = f"{wrong} elements of a product are wrong"
    return found


def _measure_all_reduce(task: dict[str, Any]) -> float:
    import torch  # noqa: PLC0415 - loaded by the zygote
    import torch.distributed as dist  # noqa: PLC0415

    gpu = torch.cuda.is_available() and dist.is_nccl_available()
    device = torch.device("cuda", task["local_rank"]) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    limit = dt.timedelta(seconds=task["seconds"])
    store = dist.TCPStore(  # type: ignore[attr-defined] # torch re-exports it without saying so
        task["store_host"], task["store_port"], is_master=False, timeout=limit
    )
    dist.init_process_group(
        "nccl" if gpu else "gloo",
        store=dist.PrefixStore(f"{task['check']}/{task['round']}", store),  # type: ignore[attr-defined]
        rank=task["rank"],
        world_size=task["world_size"],
        timeout=limit,
    )
    numbers = torch.empty(GPU_FLOATS if gpu else CPU_FLOATS, device=device)
    expected = task["world_size"] * (task["world_size"] + 1) / 2

    def reduce(times: int) -> float:
        begun = time.perf_counter()
        for _ in range(times):
            numbers.fill_(task["rank"] + 1)
            dist.all_reduce(numbers)
        if gpu:
            torch.cuda.synchronize(device)
        return (time.perf_counter() - begun) / times

    reduce(WARM_UPS)
    seconds = min(reduce(REDUCTIONS) for _ in range(SPANS))
    if not bool((numbers == expected).all()):
        raise ArithmeticError(f"the sum of {task['world_size']} processes is wrong")
    return seconds


def _mean(work: Callable[[], Any]) -> float:
    """Seconds of one call, over a span."""
    begun, calls = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < SPAN_SECONDS or not calls:
        work()
        calls += 1
    return passed / calls


def _error_text(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else 'no message'}"
