# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Rules for training processes that a GPU ended; mostly taken from documentation, in order."""

from __future__ import annotations

from rover_kf.elastic.failures.rule import (
    NODE,
    POD,
    PROCESS,
    REPLACE_NODE,
    REPLACE_POD,
    RESTART,
    Rule,
)

_GPU = "a GPU"
_XIDS = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
_PLUGIN = "https://github.com/NVIDIA/k8s-device-plugin (applicationErrorXids)"
_CUDA = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"

RULES = (
    Rule(
        "gpu_error",
        PROCESS,
        RESTART,
        "the GPU refused what the program did and is healthy otherwise; if it comes again at the "
        "same place, run with CUDA_LAUNCH_BLOCKING=1 to see where",
        source=_PLUGIN,
        needs=_GPU,
        text=r"NVRM: Xid \([^)]*\): (?:13|31|43|45|68)\b",
    ),
    Rule(
        "gpu_hardware",
        NODE,
        REPLACE_NODE,
        "the GPU or its memory is damaged or has left the bus; the node needs a reset or a repair",
        source=f"{_XIDS}; https://github.com/vllm-project/vllm/issues/5222",
        needs=_GPU,
        text=r"NVRM: Xid|fallen off the bus|uncorrectable (?:ECC|NVLink) error"
        r"|hardware stack error",
    ),
    Rule(
        "gpu_missing",
        POD,
        REPLACE_POD,
        "the container sees no usable GPU; its node's driver or device plugin has lost it",
        source=_CUDA,
        text=r"no CUDA-capable device is detected|CUDA-capable device\(s\) is/are busy or unavail"
        r"|Found no NVIDIA driver|CUDA driver initialization failed|No CUDA GPUs are available",
    ),
    Rule(
        "gpu_out_of_memory",
        PROCESS,
        RESTART,
        "the GPU's memory is full; a smaller batch, activation checkpointing or sharding helps",
        source="https://github.com/pytorch/pytorch/issues/16417",
        needs=_GPU,
        text=r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        permanent_if_repeated=True,
    ),
    Rule(
        "gpu_assertion",
        PROCESS,
        RESTART,
        "a check inside a kernel failed: often an index or a label out of range in the data",
        source=_CUDA,
        needs=_GPU,
        text=r"device-side assert",
        permanent_if_repeated=True,
    ),
)
