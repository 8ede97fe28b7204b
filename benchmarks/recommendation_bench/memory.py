# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Host memory: predicted from a dry run of a few steps, against the peak of the real run.

A real run is ``torchrun`` with its ranks, loaders and all its steps on this machine; its peak is
what a container would be charged: pages of no file, and the mapped files once. It is predicted
twice: with a trial at the run's own batch, and from trials at a quarter and a half of it alone.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import statistics
import sys
from collections.abc import Iterator, Sequence

from rover_kf.api.decisions import Quantity
from rover_kf.recommender import container_resources, job_signature, profile
from rover_kf.recommender.dry_run_process import DryRunSpec, run_dry_run
from rover_kf.recommender.profile import Profile
from rover_kf.recommender.size_evidence import SizeEvidence

HERE = pathlib.Path(__file__).parent
SECONDS = 500.0


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One run."""

    model: str
    batch: int
    optimizer: str = "Adam"
    workers: int = 0
    world: int = 1
    held: int = 0
    steps: int = 30

    @property
    def name(self) -> str:
        """For the table."""
        parts = (self.model, f"b{self.batch}", self.optimizer, f"w{self.world}")
        loaders = f"loaders{self.workers}" if self.workers else ""
        return " ".join((*parts, *(part for part in (loaders, self._held) if part)))

    @property
    def _held(self) -> str:
        return f"held{self.held}" if self.held else ""

    @property
    def command(self) -> tuple[str, ...]:
        """As a user would write it."""
        return (
            *("torchrun", "--nproc-per-node", str(self.world), str(HERE / "train.py")),
            *("--model", self.model, "--batch", str(self.batch)),
            *("--optimizer", self.optimizer, "--workers", str(self.workers)),
            *("--held", str(self.held), "--steps", str(self.steps)),
        )

    def manifest(self) -> dict[str, object]:
        """The job."""
        container = {"name": "pytorch", "image": "any", "command": list(self.command)}
        worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
        return {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": self.model, "namespace": "bench"},
            "spec": {
                "nprocPerNode": str(self.world),
                "pytorchReplicaSpecs": {"Worker": worker},
            },
        }


CONFIGURATIONS = (
    Configuration("mlp", 64),
    Configuration("mlp", 512, "SGD"),
    Configuration("mlp", 128, "AdamW", world=2),
    Configuration("cnn", 64, "SGD", steps=12),
    Configuration("cnn", 96, workers=2, steps=12),
    Configuration("cnn", 32, world=2, steps=12),
    Configuration("transformer", 8, "AdamW", steps=12),
    Configuration("transformer", 24, steps=8),
    Configuration("transformer", 4, "AdamW", world=2, steps=12),
    Configuration("lstm", 64, steps=12),
    Configuration("lstm", 32, "SGD", workers=2, world=2, steps=12),
    Configuration("embedding", 256, "SGD"),
    Configuration("embedding", 256, "Adagrad", world=2, steps=15),
    Configuration("mlp", 64, workers=4, held=8000),
)


def measure(
    which: Sequence[Configuration] = CONFIGURATIONS, known: Sequence[dict[str, object]] = ()
) -> Iterator[dict[str, object]]:
    """How many of the peaks lay inside, after each configuration.

    Args:
        which: to measure.
        known: rows of an earlier run, which are not measured again.
    """
    rows = list(known)
    for configuration in which:
        if all(row["name"] != configuration.name for row in rows):
            rows.append(one(configuration))
        yield {
            "configurations": rows,
            "own_batch": _summary(rows, "own_batch"),
            "from_smaller_batches": _summary(rows, "from_smaller_batches"),
        }


def one(configuration: Configuration) -> dict[str, object]:
    """Predict one configuration, then run it."""
    read = job_signature.from_manifest(configuration.manifest())
    asked = DryRunSpec(
        configuration.command,
        HERE,
        batch_option="--batch",
        factors=(1.0, 0.5, 0.25),
        steps=4,
        seconds=SECONDS,
    )
    tried = run_dry_run(asked)
    own = container_resources.predict_memory(SizeEvidence(read, (), tried))
    smaller = dataclasses.replace(tried, trials=tried.trials[:2])
    extrapolated = container_resources.predict_memory(
        SizeEvidence(read, (), smaller), configuration.batch
    )
    if own is None or extrapolated is None:
        raise AssertionError(tried.failures)
    real = _run(configuration)
    row = {
        "name": configuration.name,
        "peak_mib": real.peak_memory / 2**20,
        "own_mib": real.footprint.anonymous / 2**20,
        "own_batch": _compared(own, real.peak_memory),
        "from_smaller_batches": _compared(extrapolated, real.peak_memory),
    }
    print(row, flush=True)
    return row


def _run(configuration: Configuration) -> Profile:
    line = [sys.executable, "-m", "torch.distributed.run", *configuration.command[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = profile.run_profile(line, environment, HERE, SECONDS)
    if not found.exited:
        raise AssertionError(f"{configuration.name} did not end in {SECONDS} s")
    return found


def _compared(predicted: Quantity, peak: float) -> dict[str, float | bool]:
    return {
        "target_mib": predicted.target / 2**20,
        "lower_mib": predicted.lower / 2**20,
        "upper_mib": predicted.upper / 2**20,
        "inside": predicted.lower <= peak <= predicted.upper,
        "over": predicted.target / peak - 1,
        "upper_over_lower": predicted.upper / predicted.lower,
    }


def _summary(rows: Sequence[dict[str, object]], key: str) -> dict[str, float]:
    found = [row[key] for row in rows]
    each = [one for one in found if isinstance(one, dict)]
    return {
        "inside": sum(bool(one["inside"]) for one in each) / len(each),
        "median_over": statistics.median(float(one["over"]) for one in each),
        "too_small": sum(one["over"] < 0 for one in each) / len(each),
        "upper_over_lower": max(float(one["upper_over_lower"]) for one in each),
    }
