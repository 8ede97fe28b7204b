# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which failure each test brings about, and how: the tests take from here what they have to show,
and docs/generate.py what it says of each row of the catalogue."""

from __future__ import annotations

import dataclasses

FAULTS = "tests/faults/test_failures.py"
ENDINGS = "tests/embedded/test_endings.py"
MEMORY = "tests/cluster/test_memory.py"
POD_ENDS = "tests/cluster/test_pod_ends.py"
TENSORFLOW = "tests/compat/test_tensorflow.py"


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One way to fail."""

    name: str
    """What the test calls it: its function, or its pod."""
    kind: str
    """What it is told as."""
    how: str
    """What is done, in a few words."""
    words: str = ""
    """In what is told."""
    variant: str = ""
    """Of the rule, where several are of that kind."""
    rank: int = 1
    """Whose process it is told of."""
    test: str = FAULTS
    real: bool = True
    """Whether the thing itself happens; else its words alone are written."""


PROCESSES = (
    Case("killed_after_a_step", "process_killed", "SIGKILL", "SIGKILL"),
    Case("terminated", "process_killed", "SIGTERM", "SIGTERM"),
    Case("null_pointer", "crashed", "a read of address 0", "SIGSEGV"),
    Case("aborted", "crashed", "`abort()`", "SIGABRT"),
    Case("bus_error", "crashed", "a mapped file on a full volume", "SIGBUS"),
    Case("exited", "exited", "`sys.exit(1)`", "exit code 1"),
    Case(
        "wrong_arguments",
        "usage_error",
        "an option that argparse refuses",
        "argument --epochs: invalid int value: 'many'",
    ),
    Case(
        "missing_import",
        "user_error",
        "a module that is not there",
        "ModuleNotFoundError: No module named 'nowhere_to_be_found'",
    ),
    Case("syntax_error", "user_error", "a syntax error", "SyntaxError"),
    Case("assertion", "error", "a failed assertion", "AssertionError: the batch has no labels"),
    Case("peer_killed", "process_killed", "SIGKILL between two all-reduces", "SIGKILL"),
    Case(
        "cause_comes_late",
        "error",
        "an exception that comes after those of its peers",
        "ZeroDivisionError: the root of it",
    ),
    Case(
        "peer_hung_up",
        "peer_lost",
        "the other rank closes its connections before an all-reduce",
        "another rank went away",
        variant="in a collective",
        rank=0,
    ),
    Case(
        "store_lost",
        "peer_lost",
        "the process that keeps a store is killed",
        "the store of the round",
        variant="or the store",
    ),
    Case(
        "collective_timeout",
        "collective_timeout",
        "the other rank does not join an all-reduce (Gloo)",
        "Timed out waiting 1000",
        rank=0,
    ),
    Case("volume_full", "disk_full", "`torch.save` to a full volume"),
    Case(
        "no_memory_for_python",
        "out_of_memory",
        "`RLIMIT_AS`, and Python asks for more",
        "MemoryError",
        variant="refused to Python",
    ),
    Case(
        "no_memory_for_torch",
        "out_of_memory",
        "`RLIMIT_AS`, and torch asks for more",
        "DefaultCPUAllocator",
        variant="refused to others",
    ),
    Case("unknown_host", "name_resolution", "a name that does not exist", "gaierror: "),
    Case(
        "unknown_master",
        "name_resolution",
        "a store's name that does not exist",
        "nowhere.invalid",
        variant="logged by torch",
    ),
    Case("too_many_files", "too_many_files", "`RLIMIT_NOFILE`", "Too many open files"),
    Case(
        "loader_killed",
        "data_loader_killed",
        "SIGKILL of a worker",
        "a data loader's worker was killed, mostly for memory",
    ),
    Case(
        "loader_without_memory",
        "data_loader_killed",
        "a worker takes more than the control group has",
        "the kernel killed a data loader's worker",
        variant="for memory",
    ),
    Case("shared_memory_full", "shared_memory_full", "a loader's rows in a /dev/shm of 64 KiB"),
    Case("missing_file", "outside", "a file that is not there", "no-such-data.bin"),
    Case(
        "nccl_refuses",
        "nccl_error",
        "NCCL is told of a network interface that is not there",
        "NCCL Error 5: invalid usage",
    ),
    Case("gpu_missing", "gpu_missing", "`torch.ones(1, device='cuda')` without a driver", "NVIDIA"),
    Case("gpu_lost", "gpu_hardware", "the kernel's line", "SIGABRT", real=False),
    Case("wrong_data", "error", "an exception", "ValueError: sample 4711 has 3 columns"),
    Case("wrong_data", "error", "an exception", "ValueError: sample 4711 has 3 columns"),
)
"""Of one job, a round each; the last ends it, since it is the same as the one before."""

LIMIT_REACHED = Case(
    "hungry", "out_of_memory", "a rank takes more than its pod's limit", variant="killed",
    test=MEMORY,
)  # fmt: skip
OTHER_SIZE = Case(
    "other_size", "wrong_world_size", "three ranks where two saved, each its own", test=ENDINGS
)
OTHER_ENTRIES = Case("other_entries", "user_error", "a state with an entry more", test=ENDINGS)
SERVER_LOST = Case(
    "ps-0", "peer_lost", "a parameter server is killed", variant="TensorFlow's", test=TENSORFLOW
)

PODS = (
    Case("full", "out_of_memory", "more memory than its limit", test=POD_ENDS),
    Case("killed", "process_killed", "SIGKILL of its container's process", test=POD_ENDS),
    Case("late", "deadline_exceeded", "activeDeadlineSeconds", test=POD_ENDS),
    Case("drained", "drained", "the API's eviction", test=POD_ENDS),
    Case("taken", "node_lost", "a taint NoExecute", test=POD_ENDS),
    Case("small", "preempted", "a pod of a higher PriorityClass", test=POD_ENDS),
    Case("pressed", "evicted", "a kubelet that wants more memory free", test=POD_ENDS),
    Case("hoard", "over_storage_limit", "a file beyond its emptyDir's sizeLimit", test=POD_ENDS),
    Case("wide", "not_admitted", "more CPUs than the node that it names has", test=POD_ENDS),
    Case("elsewhere", "not_admitted", "a node whose labels it does not want", test=POD_ENDS),
    Case("unnamed", "not_startable", "an image's name that is none", test=POD_ENDS),
    Case("missing", "not_startable", "an image that is not there", test=POD_ENDS),
    Case("unset", "not_startable", "a ConfigMap that is not there", test=POD_ENDS),
    Case("unknown", "not_startable", "a program that is not there", test=POD_ENDS),
)


def ways(kind: str, variant: str, among: tuple[Case, ...]) -> list[Case]:
    """Those that bring a rule's failure about for real, each once."""
    found = (one for one in among if (one.kind, one.variant) == (kind, variant) and one.real)
    return list(dict.fromkeys(found))


OF_PROCESSES = (*PROCESSES, LIMIT_REACHED, SERVER_LOST, OTHER_SIZE, OTHER_ENTRIES)
