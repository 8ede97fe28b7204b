# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Readers of tables against peers: samples a second, memory, and time to the first sample.

All read the same files in the same orders: by blocks, and any sample after any other.
A process of its own measures each reader once a round, and rounds alternate the readers.
The floor reads the files' bytes from begin to end.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import tempfile
from typing import Any

import pyarrow as pa
import torch
from pyarrow import parquet

from benchmarks.checkpoint_systems import environments
from rover_kf.data_sharding.permutation import Permutation
from rover_kf.trainer.data.shuffle import BlockInterleave, BlockShuffled

HERE = pathlib.Path(__file__).parent
ROWS, PAYLOAD, GROUP = 100_000, 1000, 2000
"""Rows of a table, bytes of one, rows of a row group."""
BATCHES = 200
"""Of an order, at most: a process reads fewer where its seconds are over."""
BATCH = 256
READERS = {
    "parquet": ("rover", "datasets", "datasets_uncached", "torchdata", "pyarrow", "floor"),
    "arrow": ("rover", "datasets", "pyarrow", "floor"),
}
PEER_OF = {
    "datasets": "huggingface_datasets",
    "datasets_uncached": "huggingface_datasets",
    "torchdata": "huggingface_datasets",
}


def measure(rounds: int) -> dict[str, Any]:
    """Medians of rounds; a peer that cannot run says why."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        _write_files(folder)
        for kind, readers in READERS.items():
            _write_orders(folder, kind)
            runs: dict[str, list[Any]] = {reader: [] for reader in readers}
            for number in range(rounds):
                for reader in readers if number % 2 == 0 else reversed(readers):
                    runs[reader].append(_run(folder, kind, reader))
            found[kind] = {reader: _summary(each) for reader, each in runs.items()}
    return {"file_readers": found}


def _write_files(folder: pathlib.Path) -> None:
    drawn = random.Random(0)  # noqa: S311 - no secret
    for name in READERS:
        (folder / name).mkdir()
    each = ROWS // 4
    for number in range(4):
        # Pixels do not compress, labels do.
        table = pa.table(
            {
                "pixels": [drawn.randbytes(PAYLOAD) for _ in range(each)],
                "label": [row % 10 for row in range(each)],
            }
        )
        parquet.write_table(table, folder / f"parquet/{number}.parquet", row_group_size=GROUP)
        with pa.ipc.new_file(folder / f"arrow/{number}.arrow", table.schema) as out:
            out.write_table(table, max_chunksize=GROUP)


def _write_orders(folder: pathlib.Path, kind: str) -> None:
    """Numbers of samples, the same for all readers."""
    count = min(ROWS, BATCH * BATCHES)
    places = torch.arange(count)
    blocks = BlockShuffled([GROUP] * (ROWS // GROUP), BlockInterleave(8, 32), 1, 0)
    order = Permutation(ROWS, 1, 0)
    for name, numbers in (
        ("blocks", blocks.samples_at(places).tolist()),
        ("random", [order.value_at(place) for place in range(count)]),
    ):
        (folder / f"{kind}.{name}.json").write_text(json.dumps(numbers))


def _run(folder: pathlib.Path, kind: str, reader: str) -> Any:
    cache = folder / f"cache-{kind}"
    if reader == "datasets_uncached":
        shutil.rmtree(cache, ignore_errors=True)
    try:
        python = environments.python_for(PEER_OF.get(reader, "rover"))
        done = subprocess.run(
            [python, HERE / "file_reader_process.py", reader, kind, folder, str(BATCH)],
            env={
                **os.environ,
                "PYTHONPATH": str(HERE.parents[1]),
                "PYTHONWARNINGS": "ignore",
                "HF_DATASETS_CACHE": str(cache),
                "HF_HUB_OFFLINE": "1",
                "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    except environments.NotInstalled as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        return f"does not run: {error.stderr.strip().splitlines()[-1]}"
    return json.loads(done.stdout.splitlines()[-1])


def _summary(runs: list[Any]) -> Any:
    """Of a reader; the reason if a run of it ended."""
    failed = [run for run in runs if isinstance(run, str)]
    if failed:
        return failed[0]
    return {
        key: [round(value, 3) for value in (statistics.median(each), min(each), max(each))]
        for key in runs[0]
        for each in [[run[key] for run in runs]]
    }
