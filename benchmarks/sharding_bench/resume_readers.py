# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One life of a job that only reads: ranks as real processes, which end in the middle of an epoch.

Writes what each rank was given, when its first batch was there, and the place for a checkpoint.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import pathlib
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from benchmarks.sharding_bench.counted_samples import Counted

SEED = 5


class Rover:
    """ElasticDataLoader."""

    def __init__(self, given: argparse.Namespace, rank: int) -> None:
        from rover_kf import ElasticDataLoader  # noqa: PLC0415 - a peer's environment may lack it

        self.batches = ElasticDataLoader(
            Counted(given.samples), given.batch, seed=SEED, rank=rank, world_size=given.world
        )

    def load(self, state: Any) -> None:
        """Go on there."""
        self.batches.load_state_dict(state)

    def state(self, steps: int) -> Any:  # noqa: ARG002 - it counts itself
        """The place."""
        return self.batches.state_dict()


class Dlrover:
    """ElasticDistributedSampler below a DataLoader."""

    def __init__(self, given: argparse.Namespace, rank: int) -> None:
        from dlrover.trainer.torch.elastic.sampler import ElasticDistributedSampler  # noqa: PLC0415 - only in its environment

        data, self._own = Counted(given.samples), given.batch // given.world
        self._sampler = ElasticDistributedSampler(data, given.world, rank, seed=SEED)
        self.batches = DataLoader(data, self._own, sampler=self._sampler)

    def load(self, state: Any) -> None:
        """Go on there."""
        self._sampler.load_state_dict(state)

    def state(self, steps: int) -> Any:
        """The place."""
        return self._sampler.state_dict(steps, self._own)


class Mosaicml:
    """StreamingDataset and StreamingDataLoader, whose samples are in files of its own format."""

    def __init__(self, given: argparse.Namespace, rank: int) -> None:  # noqa: ARG002 - by variables
        from streaming import StreamingDataLoader, StreamingDataset  # noqa: PLC0415 - the same

        own = given.batch // given.world
        data = StreamingDataset(
            local=str(given.folder / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=own
        )
        self.batches = StreamingDataLoader(data, batch_size=own, collate_fn=_numbers)

    @staticmethod
    def prepare(folder: pathlib.Path, samples: int) -> None:
        """Write the files."""
        from streaming import MDSWriter  # noqa: PLC0415 - the same

        with MDSWriter(out=str(folder / "mds"), columns={"number": "int"}) as out:
            for number in range(samples):
                out.write({"number": number})

    def load(self, state: Any) -> None:
        """Go on there."""
        self.batches.load_state_dict(state)

    def state(self, steps: int) -> Any:  # noqa: ARG002 - it counts itself
        """The place."""
        return self.batches.state_dict()


def _numbers(samples: list[Any]) -> torch.Tensor:
    return torch.tensor([int(sample["number"]) for sample in samples])


PACKAGES = {
    "rover": "rover_kf.trainer.data.elastic_loader",
    "dlrover": "dlrover.trainer.torch.elastic.sampler",
    "mosaicml": "streaming",
}
SYSTEMS = {"rover": Rover, "dlrover": Dlrover, "mosaicml": Mosaicml}


def main() -> None:
    """Fork the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=[*SYSTEMS])
    for name in ("world", "samples", "batch", "port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--steps", type=int, default=10**9, help="after which the life ends")
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--life", required=True, help="names what is written")
    parser.add_argument("--after", default="", help="life whose checkpoint is restored")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.system == "mosaicml" and not (given.folder / "mds").exists():
        Mosaicml.prepare(given.folder, given.samples)
    importlib.import_module(PACKAGES[given.system])  # before ranks are forked: not measured
    ranks = [_fork(given, rank) for rank in range(given.world)]
    assert all(os.waitpid(rank, 0)[1] == 0 for rank in ranks)


def _fork(given: argparse.Namespace, rank: int) -> int:
    process = os.fork()
    if not process:
        world = str(given.world)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world}
        os.environ |= {"LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1"}
        os.environ["MASTER_PORT"] = str(given.port)
        dist.init_process_group("gloo")
        found = _read(given, rank)
        (given.folder / f"{given.life}-{rank}.json").write_text(json.dumps(found))
        os._exit(0)
    return process


def _read(given: argparse.Namespace, rank: int) -> dict[str, Any]:
    begun = time.monotonic()
    reader = SYSTEMS[given.system](given, rank)
    if given.after:
        reader.load(json.loads((given.folder / f"{given.after}-0.json").read_text())["state"])
    steps: list[list[int]] = []
    first = 0.0
    for batch in itertools.islice(reader.batches, given.steps):
        first = first or time.monotonic() - begun
        steps.append(torch.as_tensor(batch).tolist())
    dist.barrier()
    return {"steps": steps, "first_batch": first, "state": reader.state(len(steps))}


if __name__ == "__main__":
    main()
