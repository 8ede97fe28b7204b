# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``partitioned.py MOST SCRIPT …``: a large variable of the script has at most so many parts for
each parameter server.
"""

import json
import os
import runpy
import sys

import tensorflow as tf

most, *rest = sys.argv[1:]
SERVERS = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["ps"])
partitioners = tf.distribute.experimental.partitioners
by_size = partitioners.MinSizePartitioner
partitioners.MinSizePartitioner = lambda size, _: by_size(size, SERVERS * int(most))
sys.argv = rest
runpy.run_path(rest[0], run_name="__main__")
