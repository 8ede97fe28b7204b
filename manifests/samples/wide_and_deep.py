# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Train a wide-and-deep model on scikit-learn's table of tumours, with parameter servers.

The command of a TFJob's Chief, Workers and PS alike; wide-and-deep.yaml beside it is one. The lines
marked "rover-kf" make it survive the loss of any of them. Needs tensorflow, tf-keras and
scikit-learn.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Keras 3 has no parameter servers

import numpy as np
import tensorflow as tf

from rover_kf.trainer.tensorflow import TensorFlowCheckpointer
from rover_kf.trainer.tensorflow.checkpointer import ScheduledRecords

BINS, CROSSED, BATCH = 8, 12, 64


def read_table() -> tuple[np.ndarray, np.ndarray]:
    """Its 569 rows of 30 measures, each scaled to mean 0 and deviation 1, and who is benign."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("wide_and_deep.py needs scikit-learn: pip install scikit-learn")
    package = pathlib.Path(spec.submodule_search_locations[0])
    rows = np.loadtxt(package / "datasets/data/breast_cancer.csv", delimiter=",", skiprows=1)
    measures = rows[:, :-1]
    scaled = (measures - measures.mean(0)) / measures.std(0)
    return scaled.astype("float32"), rows[:, -1:].astype("float32")


def cross(scaled: np.ndarray) -> np.ndarray:
    """Pairs of neighbouring columns, binned: the number of each row's cell in each pair's grid."""
    bins = np.digitize(scaled[:, : CROSSED + 1], np.linspace(-1.5, 1.5, BINS - 1))
    grids = np.arange(CROSSED) * BINS * BINS
    return (bins[:, :-1] * BINS + bins[:, 1:] + grids).astype("int64")


class WideAndDeep:
    """A weight for each cell that a row falls into, and two layers over its measures."""

    def __init__(self, columns: int, width: int) -> None:
        draw = tf.random_normal_initializer(stddev=0.2, seed=0)
        self.wide = tf.Variable(tf.zeros([CROSSED * BINS * BINS, 1]), name="wide")
        self.first = tf.Variable(draw([columns, width]), name="first")
        self.last = tf.Variable(draw([width, 1]), name="last")
        self.bias = tf.Variable(tf.zeros([1]), name="bias")

    def parts(self) -> dict[str, tf.Variable]:
        """By name; a large one lies on several servers."""
        return {"wide": self.wide, "first": self.first, "last": self.last, "bias": self.bias}

    def pieces(self) -> list[tf.Variable]:
        """What each server has of them."""
        return [
            shard for part in self.parts().values() for shard in getattr(part, "variables", [part])
        ]

    def loss(self, cells: tf.Tensor, measures: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Mean cross entropy."""
        seen = tf.reduce_sum(tf.nn.embedding_lookup(self.wide, cells), axis=1)
        # A part that lies on several servers becomes a tensor; the others are used as they are.
        first = tf.convert_to_tensor(self.first)
        logits = seen + tf.nn.relu(measures @ first) @ tf.convert_to_tensor(self.last) + self.bias
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


def train(resolver: tf.distribute.cluster_resolver.ClusterResolver, steps: int, width: int) -> None:
    """What the chief does: hand out batches of rows, save, tell."""
    scaled, labels = read_table()
    table = (cross(scaled), scaled, labels)
    shards = tf.distribute.experimental.partitioners.MinSizePartitioner(1024, 8)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=shards)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = WideAndDeep(scaled.shape[1], width)
        optimizer = tf.keras.optimizers.Adagrad(0.05)
        # Before the restore: what it keeps of a part on several servers is brought back with it.
        optimizer.build(model.pieces())
        # How often each row was trained on; it goes back with a checkpoint as the weights do.
        seen = tf.Variable(tf.zeros([len(labels)], tf.int64), name="seen")
    epochs = -(-steps * BATCH // len(labels))
    rows = ScheduledRecords(coordinator, len(labels), batch=BATCH, epochs=epochs)  # rover-kf, 1
    state = tf.train.Checkpoint(optimizer=optimizer, seen=seen, **model.parts())
    checkpointer = TensorFlowCheckpointer(state, records=rows)  # rover-kf, 2
    with strategy.scope():
        step = checkpointer.restore()  # rover-kf, 3
    whole = tf.function(lambda: model.loss(*map(tf.constant, table)))
    source = f"{step} from {checkpointer.restored_from}"
    print(f"starts after step {source}: loss {float(whole()):.6f}", flush=True)

    def train_on(numbers: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = model.loss(*(tf.gather(column, numbers) for column in table))
        pieces = model.pieces()
        optimizer.apply_gradients(zip(tape.gradient(loss, pieces), pieces, strict=True))
        once = tf.IndexedSlices(tf.ones_like(numbers), numbers)
        seen.scatter_add(once)

    def train_once(numbers: tf.Tensor) -> None:
        strategy.run(train_on, args=(numbers,))

    while step < steps and (count := rows.schedule(train_once)):  # rover-kf, 4
        step += 1
        checkpointer.step(step, samples=count, total_steps=steps)  # rover-kf, 5
        if step % 10 == 0:
            print(f"step {step} loss {float(whole()):.6f}", flush=True)
    coordinator.join()
    checkpointer.close()
    counts = tf.convert_to_tensor(seen).numpy()
    result = {"steps": step, "loss": float(whole()), "resumed": checkpointer.restored_from}
    result |= {"rows": int(counts.sum()), "least": int(counts.min()), "most": int(counts.max())}
    print(json.dumps(result), flush=True)


def main() -> None:
    """Serve or train, as TF_CONFIG says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=32, help="of the hidden layer")
    given = parser.parse_args()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        ).join()
    else:
        train(resolver, given.steps, given.width)


if __name__ == "__main__":
    main()
