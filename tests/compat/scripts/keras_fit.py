# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Model.fit as its users write it, with the lines that rover-kf needs.

keras_fit.py EPOCHS BATCHES    Prints each batch, and the weights' digest at the end.
"""

import hashlib
import os
import sys

import tensorflow as tf

from rover_kf.trainer.keras import flash_checkpoint


class Tell(tf.keras.callbacks.Callback):
    """Prints where training is."""

    def done(self) -> int:
        """Steps of the optimizer."""
        return int(tf.convert_to_tensor(self.model.optimizer.iterations))

    def on_train_begin(self, logs=None):
        """What the optimizer has done before."""
        del logs
        print("begins after", self.done(), flush=True)

    def on_train_batch_end(self, batch, logs=None):
        """After each batch."""
        del batch
        print("batch", self.done(), "loss", logs["loss"], flush=True)


def main() -> None:
    """Fit a small model to one batch, again and again: where in its data it is makes no odds."""
    tf.keras.utils.set_random_seed(0)
    together = "TF_CONFIG" in os.environ
    mirrored = tf.distribute.MultiWorkerMirroredStrategy
    strategy = mirrored() if together else tf.distribute.get_strategy()
    with strategy.scope():
        layers = [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)]
        model = tf.keras.Sequential([tf.keras.Input((8,)), *layers])
        model.compile("adam", "mse")
    # Two workers take a half each, one after the other's: the halves are the same.
    rows = tf.random.normal([16, 8], seed=1), tf.random.normal([16, 1], seed=2)
    batch = tuple(tf.tile(part, [2, 1]) for part in rows)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    data = tf.data.Dataset.from_tensors(batch).repeat().with_options(options)
    flash = flash_checkpoint()
    epochs, batches = map(int, sys.argv[1:])
    tell = [flash, Tell()]
    model.fit(data, epochs=epochs, steps_per_epoch=batches, callbacks=tell, verbose=0)
    print("resumed from", flash.checkpointer.restored_from, flush=True)
    weights = b"".join(value.tobytes() for value in model.get_weights())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)


main()
