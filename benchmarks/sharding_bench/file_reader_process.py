# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One reader in its own process: time to the first sample, samples a second, growth of memory."""

from __future__ import annotations

import json
import mmap
import pathlib
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

SECONDS = 0.7
"""That an order is read for, at most."""

Read = Callable[[Sequence[int]], Sequence[Any]]
"""A batch of samples by their numbers, as DataLoader's workers ask for one."""


def rover(kind: str, folder: pathlib.Path) -> Read:
    """This project's."""
    from rover_kf import FileDataset, TableRows, TextLines  # noqa: PLC0415 - of its own environment

    if kind == "files":
        return _each(FileDataset(folder / kind))
    if kind == "text":
        return TextLines(folder / kind, index=folder / "lines").__getitems__
    return TableRows(folder / kind).__getitems__


def datasets(kind: str, folder: pathlib.Path) -> Read:
    """Hugging Face's: Arrow files that are mapped into memory; others are converted to such."""
    import datasets as peer  # noqa: PLC0415 - of its own environment

    if kind == "files":
        images = peer.load_dataset("imagefolder", data_dir=str(folder / kind), split="train")
        paths = images.cast_column("image", peer.Image(decode=False))
        # Its rows are paths; a sample is the file's bytes for every reader.
        return lambda numbers: [
            (pathlib.Path(row["image"]["path"]).read_bytes(), row["label"])
            for row in paths.__getitems__(numbers)
        ]
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


def offsets(kind: str, folder: pathlib.Path) -> Read:
    """Lines of files that are mapped into memory, by a list of where each begins."""
    import numpy as np  # noqa: PLC0415 - only where it is measured

    places = []
    for path in sorted((folder / kind).iterdir()):
        with path.open("rb") as file:
            text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        places.append((text, np.concatenate([[-1], ends]) + 1))
    begins = np.cumsum([0, *(len(each) - 1 for _, each in places)])

    def read(numbers: Sequence[int]) -> Sequence[str]:
        lines = []
        for number in numbers:
            file = int(np.searchsorted(begins, number, side="right")) - 1
            text, line = places[file]
            at = number - begins[file]
            lines.append(text[line[at] : line[at + 1] - 1].decode())
        return lines

    return read


def torchvision(kind: str, folder: pathlib.Path) -> Read:
    """Its DatasetFolder, with a loader that reads bytes."""
    from torchvision.datasets import DatasetFolder  # noqa: PLC0415 - of its own environment

    def content(path: str) -> bytes:
        return pathlib.Path(path).read_bytes()

    return _each(DatasetFolder(str(folder / kind), content, extensions=(".png",)))


def _each(data: Any) -> Read:
    return lambda numbers: [data[number] for number in numbers]


READERS = {
    "rover": rover,
    "datasets": datasets,
    "datasets_uncached": datasets,
    "torchdata": torchdata,
    "pyarrow": pyarrow,
    "offsets": offsets,
    "torchvision": torchvision,
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
        found[f"{name}_per_second"] = rate(read, numbers, batch)
        private, shared = (now - then for now, then in zip(resident(), before, strict=True))
        found[f"{name}_private_mib"], found[f"{name}_mapped_mib"] = private, shared
    return found


def rate(read: Read, numbers: Sequence[int], batch: int) -> float:
    """Samples a second."""
    begun, count = time.perf_counter(), 0
    while count < len(numbers) and time.perf_counter() - begun < SECONDS:
        count += len(read(numbers[count : count + batch]))
    return count / (time.perf_counter() - begun)


def resident() -> tuple[float, float]:
    """MiB in memory: of the process alone, and of mapped files."""
    status = pathlib.Path("/proc/self/status").read_text()
    anonymous, file = (
        int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in ("RssAnon", "RssFile")
    )
    return anonymous, file


if __name__ == "__main__":
    main()
