# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``scheduled_rows.py ROWS BATCH EPOCHS``: counts how often each row was handed to a worker.

The command of a TFJob's Chief, Workers and PS. A worker prints ``took N`` for each batch; the chief
prints what it has counted in the end.
"""

import json
import sys

import tensorflow as tf

from rover_kf.trainer.tensorflow import TensorFlowCheckpointer
from rover_kf.trainer.tensorflow.checkpointer import ScheduledRecords

WORK = 600
"""Of a batch: the side of a square that is multiplied by itself."""


def train(resolver, rows, batch, epochs):
    """The chief: hand out, count, tell."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        counts = tf.Variable(tf.zeros([epochs, rows], tf.int64))
        total = tf.Variable(0.0)
        epoch = tf.Variable(0, dtype=tf.int64)
    records = ScheduledRecords(coordinator, rows, batch=batch, epochs=epochs)
    state = tf.train.Checkpoint(counts=counts, total=total, epoch=epoch)
    checkpointer = TensorFlowCheckpointer(state, records=records)
    step = checkpointer.restore()
    print(f"begins after {step}", flush=True)

    def count(numbers):
        square = tf.random.uniform([WORK, WORK])
        total.assign_add(tf.reduce_sum(square @ square))
        places = tf.stack([tf.fill(tf.shape(numbers), epoch.read_value()), numbers], axis=1)
        counts.scatter_nd_add(places, tf.ones_like(numbers))
        tf.print("took", tf.size(numbers))

    while taken := records.schedule(count):
        step += 1
        checkpointer.step(step, samples=taken)
        print(f"step {step}", flush=True)
        if step % records.batches == 0:
            records.settle()
            epoch.assign_add(1)
    checkpointer.close()
    kept = counts.numpy()
    told = {"least": int(kept.min()), "most": int(kept.max()), "rows": int(kept.sum())}
    print(json.dumps({"steps": step, **told}), flush=True)


def main():
    """Serve or train, as TF_CONFIG says."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        place = {"job_name": resolver.task_type, "task_index": resolver.task_id}
        tf.distribute.Server(resolver.cluster_spec(), **place, protocol="grpc").join()
    else:
        train(resolver, *map(int, sys.argv[1:]))


if __name__ == "__main__":
    main()
