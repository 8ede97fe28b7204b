# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``server_files.py SHARDS SAVED VERB...``: parameter servers write their variables themselves.

The command of chief, worker and servers, without sidecars. The chief carries out the verbs, prints
what each came to, and takes further ones from its standard input.
"""

import hashlib
import itertools
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf

from rover_kf import errors
from rover_kf.trainer.tensorflow import tf_config
from rover_kf.trainer.tensorflow.chief_files import ChiefFiles
from rover_kf.trainer.tensorflow.part_folders import SaveFolders
from rover_kf.trainer.tensorflow.server_files import ServerFiles

ROWS = int(os.environ.get("ROWS", "4096"))


class Model:
    """Two tables that lie on all servers, an optimizer's slots of one, and small variables."""

    def __init__(self):
        made = {"table": [ROWS, 16], "wide": [ROWS + 3, 1], "bias": [3]}
        self.parts = {name: tf.Variable(tf.zeros(shape), name=name) for name, shape in made.items()}
        self.count = tf.Variable(0, dtype=tf.int64, name="count")
        if os.environ.get("OPTIMIZER") == "legacy":
            self.optimizer = tf.keras.optimizers.legacy.Adagrad(0.05)
        else:
            self.optimizer = tf.keras.optimizers.Adagrad(0.05)
            self.optimizer.build(self.pieces())
        self.state = tf.train.Checkpoint(optimizer=self.optimizer, count=self.count, **self.parts)

    def pieces(self):
        """Each variable that a server holds."""
        return [one for part in self.parts.values() for one in getattr(part, "variables", [part])]

    def draw(self, seed):
        """Train on something that the seed tells."""
        pieces = self.pieces()
        drawn = [
            tf.random.stateless_normal(piece.shape, [seed, number])
            for number, piece in enumerate(pieces)
        ]
        self.optimizer.apply_gradients(zip(drawn, pieces, strict=True))
        self.count.assign_add(seed)

    def digest(self):
        """Of every byte, wherever it lies."""
        found = hashlib.sha256(self.count.numpy().tobytes())
        kept = self.optimizer.variables  # a method of the legacy's
        for part in (*self.parts.values(), *(kept() if callable(kept) else kept)):
            found.update(tf.convert_to_tensor(part).numpy().tobytes())
        return found.hexdigest()


def carry_out(verb, model, files, through, saved):
    """What a verb came to."""
    kind, _, number = verb.partition(":")
    folder = saved / number
    if kind == "draw":
        model.draw(int(number))
    elif kind == "write":
        folder.mkdir(parents=True)
        files.write(folder, int(number))
    elif kind in ("servers", "chief"):
        return measured(files if kind == "servers" else through, folder, int(number))
    elif kind == "read":
        files.read(folder, int(number))
    return model.digest()


def memory():
    """Most MiB that this process has had since the last call, and what it has."""
    status = pathlib.Path("/proc/self/status").read_text()
    found = dict(line.split(":", 1) for line in status.splitlines())
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return [int(found[key].split()[0]) >> 10 for key in ("VmHWM", "VmRSS")]


def measured(way, folder, step):
    """Seconds of a save, and how much more memory the chief took meanwhile."""
    folder.mkdir(parents=True)
    memory()
    _, before = memory()
    begun = time.perf_counter()
    way.write(folder, step)
    seconds = time.perf_counter() - begun
    return f"{seconds:.2f} {memory()[0] - before}"


def tried(*asked):
    """What a verb came to, or the error."""
    try:
        return carry_out(*asked)
    except (errors.RoverError, tf.errors.UnavailableError) as error:
        return f"{type(error).__name__} {error}".replace("\n", " ")


def drive(resolver, shards, saved, verbs):
    """The chief."""
    told = tf_config.read(os.environ, 1)
    cut = tf.distribute.experimental.partitioners.FixedShardsPartitioner(told.servers)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=cut)
    tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Model()
    through = ChiefFiles(model.state, told.files_device)
    files = ServerFiles(model.state, told.files_device, SaveFolders(shards, 1), told.servers)
    for verb in itertools.chain(verbs, map(str.strip, sys.stdin)):
        print(verb, tried(verb, model, files, through, saved), flush=True)
    os._exit(0)  # the servers are away by now, perhaps


def main():
    """Serve or drive, as TF_CONFIG says."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        place = {"job_name": resolver.task_type, "task_index": resolver.task_id}
        tf.distribute.Server(resolver.cluster_spec(), **place, protocol="grpc").join()
    else:
        drive(resolver, *map(pathlib.Path, sys.argv[1:3]), sys.argv[3:])


if __name__ == "__main__":
    main()
