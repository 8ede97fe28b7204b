# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""classify and first: what an end means, and which of several ends caused the others.

What a machine without a GPU can bring about is brought about in tests/faults/test_failures.py; here
are the words of GPUs, NCCL and the kernel as their documentation and their users quote them.
"""

from __future__ import annotations

import dataclasses
import random
import signal

import pytest

from rover_kf import errors
from rover_kf.api.membership import Failure
from rover_kf.elastic.failures import pods, processes
from rover_kf.elastic.failures.classify import classify, classify_pod, root_cause
from rover_kf.elastic.failures.rule import ExitEvidence, TrainingError
from tests.support.failure_cases import OF_PROCESSES, PODS, ways

ECC = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously"
LOADER = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
WATCHDOG = (
    "[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, "
    "Timeout(ms)=600000) ran for 600020 milliseconds before timing out."
)
REMOTE = (
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, remote process exited"
    " or there was a network error, NCCL version 2.18.6\nncclRemoteError: A call failed possibly"
)
UNHANDLED = "NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled cuda error, NCCL version 2.18.6"
GPU_FULL = (
    "CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of 23.65 GiB of "
    "which 11.06 MiB is free."
)
STOPPED = "NVRM: Xid (PCI:0000:06:00): 43, pid=5678, Ch 00000018"
OFF_THE_BUS = "kernel: NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus."
REMAPPER = "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping"
SHM = "unable to open shared memory object </torch_191_1> in read-write mode"
ABORTED = "terminate called after throwing an instance of 'std::runtime_error'"
OVER = 'Usage of EmptyDir volume "cache" exceeds the limit "1Mi". '
BROKEN = "  what():  NCCL error: remote process exited or there was a network error"


class DistError(RuntimeError):
    """As torch.distributed names its own, without loading it."""


class DistBackendError(DistError):
    """The same."""


def error(kind: type[BaseException], message: str = "said", line: int = 7) -> TrainingError:
    bases = tuple(base.__name__ for base in kind.__mro__[:-1])
    frames = f'Traceback (most recent call last):\n  File "train.py", line {line}, in <module>\n'
    return TrainingError(kind.__name__, bases, message, f"{frames}{kind.__name__}: {message}")


def raised(kind: type[BaseException], message: str = "said") -> ExitEvidence:
    return ExitEvidence(1, 0, error(kind, message))


def wrapped(kind: type[BaseException], cause: BaseException) -> ExitEvidence:
    bases = tuple(base.__name__ for base in type(cause).__mro__[:-1])
    chain = (f"{type(cause).__name__}: {cause}",)
    return ExitEvidence(1, 0, dataclasses.replace(error(kind), causes=bases, chain=chain))


@pytest.mark.parametrize(
    ("evidence", "kind", "action", "counts"),
    [
        (ExitEvidence(-signal.SIGKILL), "process_killed", "restart", True),
        (ExitEvidence(-signal.SIGKILL, tail=(WATCHDOG,)), "process_killed", "restart", True),
        (ExitEvidence(-signal.SIGKILL, 1), "out_of_memory", "raise_memory", True),
        (ExitEvidence(-signal.SIGSEGV, 1), "crashed", "restart", True),
        (ExitEvidence(-34), "process_killed", "restart", True),
        (ExitEvidence(1), "exited", "restart", True),
        (ExitEvidence(137), "exited", "restart", True),
        (ExitEvidence(2, tail=("usage: train.py [-h]",)), "exited", "restart", True),
        (raised(ModuleNotFoundError), "user_error", "fail_job", True),
        (raised(IndentationError), "user_error", "fail_job", True),
        (raised(AssertionError), "error", "restart", True),
        (raised(MemoryError), "out_of_memory", "restart", True),
        (ExitEvidence(1, 0, tail=(LOADER,)), "data_loader_killed", "restart", True),
        (ExitEvidence(1, 1, tail=(LOADER,)), "data_loader_killed", "raise_memory", True),
        (raised(ValueError, "gloo"), "error", "restart", True),
        (
            raised(RuntimeError, "mat1 and mat2 shapes cannot be multiplied"),
            "error",
            "restart",
            True,
        ),
        (
            raised(RuntimeError, "[gloo/x.cc:1] Connection closed by peer"),
            "peer_lost",
            "restart",
            0,
        ),
        (raised(ConnectionResetError, "reset by peer"), "outside", "restart", True),
        (wrapped(ValueError, OSError("no answer")), "outside", "restart", True),
        (raised(errors.SidecarUnavailable), "outside", "restart", True),
        (raised(errors.ArenaTooSmall), "user_error", "fail_job", True),
        (raised(errors.IncompatibleState), "user_error", "fail_job", True),
        (raised(errors.WrongWorldSize), "wrong_world_size", "other_world", True),
        (raised(errors.CheckpointError), "outside", "restart", True),
        (
            wrapped(ValueError, RuntimeError("Connection closed by peer")),
            "peer_lost",
            "restart",
            False,
        ),
        (raised(RuntimeError, ECC), "gpu_hardware", "replace_node", True),
        (
            raised(RuntimeError, "CUDA error: device-side assert triggered"),
            "gpu_assertion",
            "restart",
            1,
        ),
        (
            raised(RuntimeError, "No CUDA GPUs? no CUDA-capable device is detected"),
            "gpu_missing",
            "replace_pod",
            1,
        ),
        (raised(RuntimeError, GPU_FULL), "gpu_out_of_memory", "restart", True),
        (ExitEvidence(-signal.SIGABRT, tail=(STOPPED,)), "gpu_error", "restart", True),
        (ExitEvidence(-signal.SIGABRT, tail=(OFF_THE_BUS,)), "gpu_hardware", "replace_node", True),
        (ExitEvidence(1, tail=(REMAPPER,)), "gpu_hardware", "replace_node", True),
        (
            ExitEvidence(-signal.SIGABRT, tail=(WATCHDOG, ABORTED)),
            "collective_timeout",
            "restart",
            True,
        ),
        (raised(DistBackendError, REMOTE), "peer_lost", "restart", False),
        (raised(DistBackendError, UNHANDLED), "nccl_error", "restart", True),
        (raised(DistBackendError, "anything else"), "peer_lost", "restart", False),
        (ExitEvidence(-signal.SIGABRT, tail=(ABORTED, BROKEN)), "peer_lost", "restart", False),
        (raised(RuntimeError, SHM), "shared_memory_full", "restart", True),
    ],
)
def test_classify(evidence, kind, action, counts):
    """Each kind of evidence has its verdict, and the reason is never empty."""
    verdict = classify(evidence)
    assert (verdict.kind, verdict.action, verdict.consumes_budget) == (kind, action, bool(counts))
    assert verdict.reason


def test_every_row_is_brought_about_or_says_why_not():
    """A test does it for real, or the row names what that would take and where its words are from.
    Whatever a test declares is a row."""
    for rules, declared in ((processes.RULES, OF_PROCESSES), (pods.RULES, PODS)):
        rows = [(rule.kind, rule.variant) for rule in rules]
        assert len(set(rows)) == len(rows)
        assert {(way.kind, way.variant) for way in declared} <= set(rows)
        for rule in rules:
            done = ways(rule.kind, rule.variant, declared)
            assert bool(done) != bool(rule.needs), rule
            assert done or rule.source, rule


def test_every_row_is_reached():
    """No rule of the catalogue is hidden by one before it, as far as its own evidence goes."""
    for rules in (processes.RULES, pods.RULES):
        for rule in rules:
            assert rule.message, rule.kind
    codes = {code for rule in processes.RULES for code in rule.codes}
    assert {-number for number in range(1, 65)} <= codes
    found = {
        classify_pod(ExitEvidence(code, container_reason=reason, message=message)).kind
        for rule in pods.RULES
        for reason in rule.reasons
        for message in ("", OVER)
        for code in rule.codes or {1}
    }
    assert found == {rule.kind for rule in pods.RULES}


def test_traceback_is_told():
    """A user error's reason holds the traceback's end, however long its lines are."""
    assert classify(raised(NameError)).reason.endswith("NameError: said")
    long = classify(raised(SyntaxError, "x" * 5000)).reason
    assert len(long) == 800
    assert long.endswith("xxx")


def test_lines_of_a_traceback_are_told_whole():
    """Those that only underline are left out, and the first one is not cut in its middle."""
    frame = f'  File "{"x" * 90}.py", line 1, in place\n    load(\n    ~~~~^^\n'
    said = dataclasses.replace(error(RuntimeError), traceback=frame * 9 + "RuntimeError: no")
    first_line, *_, last_line = classify(ExitEvidence(1, 0, said)).reason.splitlines()
    assert first_line in frame.splitlines()[:2]
    assert last_line == "RuntimeError: no"
    assert "^" not in classify(ExitEvidence(1, 0, said)).reason


def test_same_error_same_place():
    """The signature tells a place in the program; numbers in the message do not matter."""
    sign = [
        classify(ExitEvidence(1, 0, error(ValueError, message, line))).signature
        for message, line in [("row 17", 7), ("row 18", 7), ("row 17", 8), ("column 17", 7)]
    ]
    assert sign[0] == sign[1]
    assert len(set(sign)) == 3
    assert all(sign)
    assert classify(ExitEvidence(-signal.SIGKILL)).signature == ""
    assert classify(raised(OSError)).signature == ""


def failure(rank: int, *, at: float = 0.0, scope: str = "process", consequence: bool = False):
    pod = f"worker-{rank}"
    return Failure(
        "error",
        scope,
        "restart",
        "said",
        pod=pod,
        incarnation="i",
        round=1,
        rank=rank,
        exit_code=1,
        consequence=consequence,
        observed_at=at,
    )


def test_first_is_the_cause():
    """A rank that died of itself explains the others, in whatever order they tell of it."""
    cause = failure(2, at=50.0)
    others = [failure(rank, at=10.0 * rank, consequence=True) for rank in (0, 1, 3)]
    for _ in range(20):
        told = [cause, *others]
        random.shuffle(told)
        assert root_cause(told) is cause


def test_first_is_the_earliest():
    """Of causes the earliest; where clocks cannot tell, the one whose damage reaches furthest."""
    early, late = failure(1, at=10.0), failure(0, at=12.0, scope="node")
    assert root_cause([late, early]) is early
    near = failure(3, at=10.9, scope="node")
    assert root_cause([early, near, late]) is near
    same = failure(0, at=10.0)
    assert root_cause([early, same]) is same
    lost = [failure(rank, at=5.0 - rank, consequence=True) for rank in (0, 2)]
    assert root_cause(lost) is lost[1]


@pytest.mark.parametrize(
    ("evidence", "kind", "scope"),
    [
        (ExitEvidence(137, container_reason="OOMKilled"), "out_of_memory", "container"),
        (ExitEvidence(137, container_reason="Error"), "process_killed", "container"),
        (
            ExitEvidence(pod_reasons=("Evicted",), message="The node was low on resource: memory."),
            "evicted",
            "node",
        ),
        (ExitEvidence(pod_reasons=("Evicted",), message=OVER), "over_storage_limit", "pod"),
        (ExitEvidence(pod_reasons=("", "PreemptionByScheduler")), "preempted", "pod"),
        (ExitEvidence(pod_reasons=("Terminated", "TerminationByKubelet")), "node_shutdown", "node"),
        (ExitEvidence(pod_reasons=("NodeLost",)), "node_lost", "node"),
        (ExitEvidence(pod_reasons=("", "DeletionByTaintManager")), "node_lost", "node"),
        (ExitEvidence(pod_reasons=("", "EvictionByEvictionAPI")), "drained", "node"),
        (ExitEvidence(pod_reasons=("DeadlineExceeded",)), "deadline_exceeded", "pod"),
        (ExitEvidence(pod_reasons=("UnexpectedAdmissionError",)), "not_admitted", "node"),
    ],
)
def test_pods(evidence, kind, scope):
    """The reasons that Kubernetes gives, with what it says beside them."""
    verdict = classify_pod(evidence)
    assert (verdict.kind, verdict.scope) == (kind, scope)
    assert evidence.message in verdict.reason


def test_pods_without_a_reason():
    """A container that just ended with an error is its launcher's to explain."""
    assert classify_pod(ExitEvidence(1, container_reason="Error")) is None
    assert classify_pod(ExitEvidence(0, container_reason="Completed")) is None
    assert classify_pod(ExitEvidence()) is None
