# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One reader in its own process: time to the first sample, samples a second, growth of memory."""

from __future__ import annotations

import json
import pathlib
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

SECONDS = 0.7
"""Of the processors that an order is read for, at most."""

Read = Callable[[Sequence[int]], Sequence[Any]]
"""A batch of samples by their numbers, as DataLoader's workers ask for one."""


def rover(kind: str, folder: pathlib.Path) -> Read:
    """This project's."""
    from rover_kf import TableRows  # noqa: PLC0415 - of its own environment

    return TableRows(folder / kind).__getitems__


def datasets(kind: str, folder: pathlib.Path) -> Read:
    """Hugging Face's: Arrow files that are mapped into memory; others are converted to such."""
    import datasets as peer  # noqa: PLC0415 - of its own environment

    files = sorted(str(path) for path in (folder / kind).iterdir())
    if kind == "arrow":
        # It converts files with a footer to streams, and maps those.
        return peer.load_dataset("arrow", data_files=files, split="train").__getitems__
    return peer.load_dataset(kind, data_files=files, split="train").__getitems__


def torchdata(kind: str, folder: pathlib.Path) -> Read:
    """Its nodes over Hugging Face's data set: torchdata itself has no readers of files."""
    from torchdata.nodes import MapStyleWrapper  # noqa: PLC0415 - of its own environment

    class _Items:
        def __init__(self) -> None:
            self.read = datasets(kind, folder)

        def __getitem__(self, numbers: Sequence[int]) -> Sequence[Any]:
            return self.read(numbers)

    items = _Items()

    def read(numbers: Sequence[int]) -> Sequence[Any]:
        return next(iter(MapStyleWrapper(items, [numbers])))

    return read


def pyarrow(kind: str, folder: pathlib.Path) -> Read:
    """Itself: Arrow files mapped into memory, Parquet files by a data set's ``take``."""
    import pyarrow as pa  # noqa: PLC0415 - only where it is measured
    from pyarrow import dataset  # noqa: PLC0415

    if kind == "parquet":
        rows = dataset.dataset(folder / kind)
        return lambda numbers: rows.take(numbers).to_pylist()
    files = sorted((folder / kind).iterdir())
    table = pa.concat_tables(
        pa.ipc.open_file(pa.memory_map(str(each))).read_all() for each in files
    )
    return lambda numbers: table.take(numbers).to_pylist()


READERS = {
    "rover": rover,
    "datasets": datasets,
    "datasets_uncached": datasets,
    "torchdata": torchdata,
    "pyarrow": pyarrow,
}


def main() -> None:
    """Measure and print."""
    reader, kind, source, batch = sys.argv[1:]
    torch.set_num_threads(1)  # a training process has torch anyway: its import is not measured
    folder = pathlib.Path(source)
    result = floor(kind, folder) if reader == "floor" else measure(reader, kind, folder, int(batch))
    print(json.dumps(result))


def floor(kind: str, folder: pathlib.Path) -> dict[str, float]:
    """Bytes of all files from begin to end, as if each batch's were the next ones."""
    begun = time.perf_counter()
    paths = sorted(path for path in (folder / kind).rglob("*") if path.is_file())
    size = sum(len(path.read_bytes()) for path in paths)
    seconds = time.perf_counter() - begun
    return {"bytes_per_second": size / seconds, "bytes": size}


def measure(reader: str, kind: str, folder: pathlib.Path, batch: int) -> dict[str, float]:
    """An order by blocks, then one at random."""
    orders = {
        name: json.loads((folder / f"{kind}.{name}.json").read_text())
        for name in ("blocks", "random")
    }
    before = resident()
    begun = time.perf_counter()
    read = READERS[reader](kind, folder)
    first = read(orders["blocks"][:1])
    started = time.perf_counter() - begun
    assert len(first) == 1
    found = {"start_seconds": started}
    for name, numbers in orders.items():
        found |= rates(name, read, numbers, batch)
        private, shared = (now - then for now, then in zip(resident(), before, strict=True))
        found[f"{name}_private_mib"], found[f"{name}_mapped_mib"] = private, shared
    return found


def rates(name: str, read: Read, numbers: Sequence[int], batch: int) -> dict[str, float]:
    """Samples a second of the clock, and of the processors: other load does not change that."""
    begun, used, count = time.perf_counter(), time.process_time(), 0
    while count < len(numbers) and time.process_time() - used < SECONDS:
        count += len(read(numbers[count : count + batch]))
    return {
        f"{name}_per_second": count / (time.perf_counter() - begun),
        f"{name}_per_cpu_second": count / (time.process_time() - used),
    }


def resident() -> tuple[float, float]:
    """MiB in memory: of the process alone, and of mapped files."""
    status = pathlib.Path("/proc/self/status").read_text()
    anonymous, file = (
        int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in ("RssAnon", "RssFile")
    )
    return anonymous, file


if __name__ == "__main__":
    main()
