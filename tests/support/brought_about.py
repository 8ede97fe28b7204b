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
class Way:
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
    Way("killed_after_a_step", "process_killed", "SIGKILL", "SIGKILL"),
    Way("terminated", "process_killed", "SIGTERM", "SIGTERM"),
    Way("null_pointer", "crashed", "a read of address 0", "SIGSEGV"),
    Way("aborted", "crashed", "`abort()`", "SIGABRT"),
    Way("bus_error", "crashed", "a mapped file on a full volume", "SIGBUS"),
    Way("exited", "exited", "`sys.exit(1)`", "exit code 1"),
    Way(
        "wrong_arguments",
        "usage_error",
        "an option that argparse refuses",
        "argument --epochs: invalid int value: 'many'",
    ),
    Way(
        "missing_import",
        "user_error",
        "a module that is not there",
        "ModuleNotFoundError: No module named 'nowhere_to_be_found'",
    ),
    Way("syntax_error", "user_error", "a syntax error", "SyntaxError"),
    Way("assertion", "error", "a failed assertion", "AssertionError: the batch has no labels"),
    Way("peer_killed", "process_killed", "SIGKILL between two all-reduces", "SIGKILL"),
    Way(
        "cause_comes_late",
        "error",
        "an exception that comes after those of its peers",
        "ZeroDivisionError: the root of it",
    ),
    Way(
        "peer_hung_up",
        "peer_lost",
        "the other rank closes its connections before an all-reduce",
        "another rank went away",
        variant="in a collective",
        rank=0,
    ),
    Way(
        "store_lost",
        "peer_lost",
        "the process that keeps a store is killed",
        "the store of the round",
        variant="or the store",
    ),
    Way(
        "collective_timeout",
        "collective_timeout",
        "the other rank does not join an all-reduce (Gloo)",
        "Timed out waiting 1000",
        rank=0,
    ),
    Way("volume_full", "disk_full", "`torch.save` to a full volume"),
    Way(
        "no_memory_for_python",
        "out_of_memory",
        "`RLIMIT_AS`, and Python asks for more",
        "MemoryError",
        variant="refused to Python",
    ),
    Way(
        "no_memory_for_torch",
        "out_of_memory",
        "`RLIMIT_AS`, and torch asks for more",
        "DefaultCPUAllocator",
        variant="refused to others",
    ),
    Way("unknown_host", "name_resolution", "a name that does not exist", "gaierror: "),
    Way(
        "unknown_master",
        "name_resolution",
        "a store's name that does not exist",
        "nowhere.invalid",
        variant="logged by torch",
    ),
    Way("too_many_files", "too_many_files", "`RLIMIT_NOFILE`", "Too many open files"),
    Way(
        "loader_killed",
        "data_loader_killed",
        "SIGKILL of a worker",
        "a data loader's worker was killed, mostly for memory",
    ),
    Way(
        "loader_without_memory",
        "data_loader_killed",
        "a worker takes more than the control group has",
        "the kernel killed a data loader's worker",
        variant="for memory",
    ),
    Way("shared_memory_full", "shared_memory_full", "a loader's rows in a /dev/shm of 64 KiB"),
    Way("missing_file", "outside", "a file that is not there", "no-such-data.bin"),
    Way(
        "nccl_refuses",
        "nccl_error",
        "NCCL is told of a network interface that is not there",
        "NCCL Error 5: invalid usage",
    ),
    Way("gpu_missing", "gpu_missing", "`torch.ones(1, device='cuda')` without a driver", "NVIDIA"),
    Way("gpu_lost", "gpu_hardware", "the kernel's line", "SIGABRT", real=False),
    Way("wrong_data", "error", "an exception", "ValueError: sample 4711 has 3 columns"),
    Way("wrong_data", "error", "an exception", "ValueError: sample 4711 has 3 columns"),
)
"""Of one job, a round each; the last ends it, since it is the same as the one before."""

LIMIT_REACHED = Way(
    "hungry", "out_of_memory", "a rank takes more than its pod's limit", variant="killed",
    test=MEMORY,
)  # fmt: skip
OTHER_SIZE = Way(
    "other_size", "wrong_world_size", "three ranks where two saved, each its own", test=ENDINGS
)
OTHER_ENTRIES = Way("other_entries", "user_error", "a state with an entry more", test=ENDINGS)
SERVER_LOST = Way(
    "ps-0", "peer_lost", "a parameter server is killed", variant="TensorFlow's", test=TENSORFLOW
)

PODS = (
    Way("full", "out_of_memory", "more memory than its limit", test=POD_ENDS),
    Way("killed", "process_killed", "SIGKILL of its container's process", test=POD_ENDS),
    Way("late", "deadline_exceeded", "activeDeadlineSeconds", test=POD_ENDS),
    Way("drained", "drained", "the API's eviction", test=POD_ENDS),
    Way("taken", "node_lost", "a taint NoExecute", test=POD_ENDS),
    Way("small", "preempted", "a pod of a higher PriorityClass", test=POD_ENDS),
    Way("pressed", "evicted", "a kubelet that wants more memory free", test=POD_ENDS),
    Way("hoard", "over_storage_limit", "a file beyond its emptyDir's sizeLimit", test=POD_ENDS),
    Way("wide", "not_admitted", "more CPUs than the node that it names has", test=POD_ENDS),
    Way("elsewhere", "not_admitted", "a node whose labels it does not want", test=POD_ENDS),
    Way("unnamed", "not_startable", "an image's name that is none", test=POD_ENDS),
    Way("missing", "not_startable", "an image that is not there", test=POD_ENDS),
    Way("unset", "not_startable", "a ConfigMap that is not there", test=POD_ENDS),
    Way("unknown", "not_startable", "a program that is not there", test=POD_ENDS),
)


def ways(kind: str, variant: str, among: tuple[Way, ...]) -> list[Way]:
    """Those that bring a rule's failure about for real, each once."""
    found = (one for one in among if (one.kind, one.variant) == (kind, variant) and one.real)
    return list(dict.fromkeys(found))


OF_PROCESSES = (*PROCESSES, LIMIT_REACHED, SERVER_LOST, OTHER_SIZE, OTHER_ENTRIES)
