# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Runs wide_and_deep.py, each batch of which takes its worker some time, whatever the machine does.

``slow_workers.py SECONDS SCRIPT …``: twice that; so as many batches are done as there are workers
for.
"""

import runpy
import sys

import tensorflow as tf
from tensorflow.python.data.experimental.ops import testing

from rover_kf.trainer.tensorflow.scheduled_records import ScheduledRecords

pause, *rest = sys.argv[1:]
SLEEP = testing.sleep(round(1e6 * float(pause)))
handed_out = ScheduledRecords.schedule
slowed: dict = {}


def schedule(records, function):
    """Hand the function out with a pause before it, which the worker makes."""
    if function not in slowed:

        def slowly(numbers):
            last = tf.data.Dataset.range(1).apply(SLEEP).reduce(tf.zeros([], tf.int64), max_of)
            with tf.control_dependencies([last]):
                function(tf.identity(numbers))

        slowed[function] = slowly
    return handed_out(records, slowed[function])


def max_of(one, other):
    """Of what the pause gives."""
    return tf.maximum(one, other)


ScheduledRecords.schedule = schedule
sys.argv = rest
runpy.run_path(rest[0], run_name="__main__")
