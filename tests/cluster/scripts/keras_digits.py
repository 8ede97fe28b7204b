# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Keras' Model.fit on scikit-learn's handwritten digits, on as many workers as TF_CONFIG names.

``keras_digits.py EPOCHS BATCHES``: batches of an epoch. It knows nothing of rover-kf, nor of any
checkpoint; a test adds the lines that it takes.
"""

import importlib.util
import pathlib
import sys

import numpy as np
import tensorflow as tf


class Tell(tf.keras.callbacks.Callback):
    """Prints where training is."""

    def batches(self):
        """That the optimizer has done in all."""
        return int(tf.convert_to_tensor(self.model.optimizer.iterations))

    def on_train_begin(self, logs=None):
        """What was done before."""
        del logs
        print("begins after", self.batches(), flush=True)

    def on_train_batch_end(self, batch, logs=None):
        """Loss: the epoch's mean until here."""
        del batch
        print("batch", self.batches(), "loss", logs["loss"], flush=True)


spec = importlib.util.find_spec("sklearn")
table = pathlib.Path(spec.origin).parent / "datasets/data/digits.csv.gz"
rows = np.loadtxt(table, delimiter=",", dtype="float32")
images, labels = rows[:, :-1] / 16, rows[:, -1].astype("int64")
epochs, batches = map(int, sys.argv[1:])

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    layers = [tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)]
    model = tf.keras.Sequential([tf.keras.Input((64,)), *layers])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(rows)).repeat().batch(64)
history = model.fit(
    data,
    epochs=epochs,
    steps_per_epoch=batches,
    verbose=0,
    callbacks=[
        Tell(),
    ],
)
print("accuracy", history.history["accuracy"][-1], flush=True)
