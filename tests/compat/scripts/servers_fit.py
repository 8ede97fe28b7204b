# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``servers_fit.py EPOCHS BATCHES``: Model.fit with parameter servers, its layers on all of them.

The command of a TFJob's Chief, Worker and PS. With one worker, and every batch the same, the
weights at the end are the same however often it was begun anew.
"""

import hashlib
import os
import sys

import tensorflow as tf

from rover_kf.trainer.keras import flash_checkpoint


class Tell(tf.keras.callbacks.Callback):
    """Prints where training is."""

    def on_train_begin(self, logs=None):
        """What the optimizer has done before."""
        del logs
        done = int(tf.convert_to_tensor(self.model.optimizer.iterations))
        print("begins after", done, flush=True)

    def on_epoch_end(self, epoch, logs=None):
        """After each epoch."""
        del logs
        print("epoch", epoch, flush=True)


def fit(resolver, epochs, batches):
    """The chief."""
    tf.keras.utils.set_random_seed(0)
    cut = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=cut)
    with strategy.scope():
        layers = [tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(2)]
        model = tf.keras.Sequential([tf.keras.Input((32,)), *layers])
        model.compile("adam", "mse")

    def data(context):
        del context
        batch = tf.random.normal([16, 32], seed=1), tf.random.normal([16, 2], seed=2)
        return tf.data.Dataset.from_tensors(batch).repeat()

    flash = flash_checkpoint()
    model.fit(
        tf.keras.utils.experimental.DatasetCreator(data),
        epochs=epochs,
        steps_per_epoch=batches,
        callbacks=[flash, Tell()],
        verbose=0,
    )
    print("resumed from", flash.checkpointer.restored_from, flush=True)
    weights = [tf.convert_to_tensor(part).numpy().tobytes() for part in model.weights]
    print("weights", hashlib.sha256(b"".join(weights)).hexdigest(), flush=True)
    os._exit(0)


def main():
    """Serve or fit, as TF_CONFIG says."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        place = {"job_name": resolver.task_type, "task_index": resolver.task_id}
        tf.distribute.Server(resolver.cluster_spec(), **place, protocol="grpc").join()
    else:
        fit(resolver, *map(int, sys.argv[1:]))


if __name__ == "__main__":
    main()
