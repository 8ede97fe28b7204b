# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Rules for the end of a training process, in the order in which they are tried.

Those of GPUs are mostly taken from documentation.
"""

from __future__ import annotations

import signal

from rover_kf.elastic.failures.rule import (
    FAIL_JOB,
    JOB,
    NEEDS_OTHER_WORLD_SIZE,
    NODE,
    POD,
    RAISE_MEMORY,
    REPLACE_NODE,
    REPLACE_POD,
    Rule,
)

_GPU = "a GPU"
_XIDS = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
_PLUGIN = "https://github.com/NVIDIA/k8s-device-plugin (applicationErrorXids)"
_CUDA = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"

ACCELERATORS = (
    Rule(
        "gpu_error",
        "the GPU refused what the program did and is healthy otherwise; if it comes again at the "
        "same place, run with CUDA_LAUNCH_BLOCKING=1 to see where",
        source=_PLUGIN,
        needs=_GPU,
        text=r"NVRM: Xid \([^)]*\): (?:13|31|43|45|68)\b",
    ),
    Rule(
        "gpu_hardware",
        "the GPU or its memory is damaged or has left the bus; the node needs a reset or a repair",
        scope=NODE,
        action=REPLACE_NODE,
        source=f"{_XIDS}; https://github.com/vllm-project/vllm/issues/5222",
        needs=_GPU,
        text=r"NVRM: Xid|fallen off the bus|uncorrectable (?:ECC|NVLink) error"
        r"|hardware stack error",
    ),
    Rule(
        "gpu_missing",
        "the container sees no usable GPU; its node's driver or device plugin has lost it",
        scope=POD,
        action=REPLACE_POD,
        source=_CUDA,
        text=r"no CUDA-capable device is detected|CUDA-capable device\(s\) is/are busy or unavail"
        r"|Found no NVIDIA driver|CUDA driver initialization failed|No CUDA GPUs are available",
    ),
    Rule(
        "gpu_out_of_memory",
        "the GPU's memory is full; a smaller batch, activation checkpointing or sharding helps",
        source="https://github.com/pytorch/pytorch/issues/16417",
        needs=_GPU,
        text=r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        permanent_if_repeated=True,
    ),
    Rule(
        "gpu_assertion",
        "a check inside a kernel failed: often an index or a label out of range in the data",
        source=_CUDA,
        needs=_GPU,
        text=r"device-side assert",
        permanent_if_repeated=True,
    ),
)
_CRASHES = frozenset(
    {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE}
)
_KILLS = frozenset(range(-64, 0)) - _CRASHES
"""Linux has 64 signals, not all of them with a name."""
_PEER = (
    r"connection closed by peer|connection reset by peer|connection refused|broken pipe|gloo"
    r"|recvvalue failed|sendbytes failed|socket timeout|wait timeout|tcpstore"
    r"|ncclRemoteError|remote process exited|connection closed by remote peer"
)

_TWO_GPUS = "two GPUs and NCCL"
_LOADER = r"DataLoader worker .*(?:killed by signal|exited unexpectedly)"
_REFUSED = (
    "the machine refused so much memory at once, or a ulimit did: ask for less (a container's "
    "limit never refuses memory, it kills)"
)

KILLS = (
    Rule(
        "out_of_memory",
        "the kernel killed it: the container's memory limit was reached; raise the limit",
        action=RAISE_MEMORY,
        variant="killed",
        codes=frozenset({-signal.SIGKILL}),
        oom_killed=True,
    ),
    Rule(
        "process_killed",
        "somebody sent it a signal that ends; what it wrote before says nothing about it",
        codes=_KILLS,
    ),
)

RESOURCES = (
    Rule(
        "name_resolution",
        "a host name had no address; if it comes again, look at the cluster's DNS and at the name",
        scope=POD,
        text=r"Name or service not known|Temporary failure in name resolution|gaierror"
        r"|No address associated with hostname|nodename nor servname",
    ),
    Rule(
        "name_resolution",
        "the address of a rank or a store could not be found; see whether the cluster's DNS works",
        scope=POD,
        variant="logged by torch",
        errors=frozenset({"DistNetworkError"}),
        logged=r"gai error",
    ),
    Rule(
        "shared_memory_full",
        "shared memory is full: fewer data loader workers, or a larger memory volume on /dev/shm",
        scope=POD,
        text=r"out of shared memory|unable to (?:open|write to|mmap) \S* ?(?:shared memory|file <)"
        r"|/dev/shm.*No space left|No space left.*/dev/shm|/torch_\S*.*No space left",
    ),
    Rule(
        "disk_full",
        "a volume is full: make room on the one that the line names, or give it more",
        scope=POD,
        text=r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing",
    ),
    Rule(
        "too_many_files",
        "the limit of open files is reached: something leaks them, or `ulimit -n` is too low",
        text=r"Too many open files",
    ),
    Rule(
        "out_of_memory",
        _REFUSED,
        variant="refused to Python",
        errors=frozenset({"MemoryError"}),
    ),
    Rule(
        "out_of_memory",
        _REFUSED,
        variant="refused to others",
        text=r"DefaultCPUAllocator|Cannot allocate memory|std::bad_alloc",
    ),
    Rule(
        "data_loader_killed",
        "the kernel killed a data loader's worker: the container's memory limit was reached; fewer "
        "workers, or a higher limit",
        action=RAISE_MEMORY,
        variant="for memory",
        text=_LOADER,
        oom_killed=True,
    ),
    Rule(
        "data_loader_killed",
        "a data loader's worker was killed, mostly for memory: fewer workers, or a higher limit",
        text=_LOADER,
    ),
)

PEERS = (
    Rule(
        "collective_timeout",
        "a collective was not joined by all ranks in time: one hung, or went another way",
        source="https://github.com/pytorch/pytorch/issues/118369 (NCCL)",
        text=r"Watchdog caught collective operation timeout|milliseconds before timing out"
        r"|Timed out waiting \d+ ?ms for (?:recv|send) operation",
        consequence=True,
    ),
    Rule(
        "peer_lost",
        "another rank went away; its own end is the cause",
        variant="in a collective",
        causes=frozenset({"RuntimeError"}),
        text=_PEER,
        consumes_budget=False,
        consequence=True,
    ),
    Rule(
        "peer_lost",
        "another rank went away, and a library ended the process for it",
        variant="by a library",
        source="https://github.com/NVIDIA/nccl/issues/795",
        needs=_TWO_GPUS,
        codes=_CRASHES,
        text=rf"what\(\):.*(?:{_PEER})",
        consumes_budget=False,
        consequence=True,
    ),
    Rule(
        "peer_lost",
        "a parameter server or another worker of TensorFlow's went away; its own end is the cause",
        variant="TensorFlow's",
        errors=frozenset({"UnavailableError", "AbortedError", "CancelledError"}),
        causes=frozenset({"OpError"}),
        consequence=True,
    ),
    Rule(
        "nccl_error",
        "NCCL failed and does not blame a peer; NCCL_DEBUG=INFO tells more",
        source="https://github.com/pytorch/pytorch/issues/111187",
        text=r"\bNCCL (?:error|WARN)|nccl\w*Error",
    ),
    Rule(
        "peer_lost",
        "another rank, or the store of the round, went away",
        variant="or the store",
        causes=frozenset({"DistNetworkError", "DistStoreError", "DistBackendError"}),
        consumes_budget=False,
        consequence=True,
    ),
)

PROGRAM = (
    Rule(
        "wrong_world_size",
        "each rank saved its own state, and only a world of as many ranks can go on from it",
        scope=JOB,
        action=NEEDS_OTHER_WORLD_SIZE,
        errors=frozenset({"WrongWorldSize"}),
    ),
    Rule(
        "user_error",
        "the program cannot run as it is; correct it, or the image that it runs in",
        scope=JOB,
        action=FAIL_JOB,
        errors=frozenset(
            {
                "ImportError",
                "SyntaxError",
                "NameError",
                "NotImplementedError",
                "InputError",
                "UnsupportedState",
                "ArenaTooSmall",
                "IncompatibleState",
            }
        ),
        permanent_if_repeated=True,
    ),
    Rule(
        "usage_error",
        "the program refused its arguments; correct the job's command",
        scope=JOB,
        action=FAIL_JOB,
        codes=frozenset({2}),
        text=r"^\S.*: error: |^Error: ",
        permanent_if_repeated=True,
    ),
    Rule(
        "outside",
        "a file, a network or another service failed; it may be there again the next time",
        causes=frozenset({"OSError", "RoverError"}),
    ),
    Rule(
        "error",
        "the program raised an exception: an assertion, a wrong value, data that it does not take",
        errors=frozenset({"BaseException"}),
        permanent_if_repeated=True,
    ),
    Rule(
        "crashed",
        "native code broke (a library, an extension, a bus error of a full memory volume)",
        codes=_CRASHES,
    ),
    Rule(
        "exited",
        "no exception tells why; its log may",
    ),
)

RULES = (*KILLS, *ACCELERATORS, *RESOURCES, *PEERS, *PROGRAM)
