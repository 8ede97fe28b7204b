# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``server_saves.py FOLDER STEPS DEATH...``: a loop whose state is known at every step.

The command of a TFJob's Chief, Worker and PS. A death is ``POINT:STEP``: the chief kills itself
there, once; ``damaged:STEP``, it spoils what the servers have written of that step before. FOLDER
holds what was done already. Whatever is restored is compared with what it has to be.
"""

import os
import pathlib
import signal
import sys

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf

from rover_kf.trainer.tensorflow import TensorFlowCheckpointer
from rover_kf.trainer.tensorflow.part_folders import SaveFolders

ROWS = 512


class Deaths:
    """What is still to be done, and where."""

    def __init__(self, folder, wanted):
        self.folder, self.wanted = folder, wanted
        folder.mkdir(exist_ok=True)

    def is_now(self, point, step):
        """Whether it is; true once."""
        mark = self.folder / f"{point}:{step}"
        if mark.name not in self.wanted or mark.exists():
            return False
        mark.touch()
        return True

    def at(self, point, step):
        """Die, if it is time."""
        if self.is_now(point, step):
            os.kill(os.getpid(), signal.SIGKILL)


def stop_at_points(deaths):
    """Between the chief's own steps of a save."""
    make, settle = SaveFolders.create, SaveFolders.sync

    def makes(self, step):
        made = make(self, step)
        deaths.at("made", step)
        return made

    def settles(self, folder):
        step = int(folder.name.split("-")[1])
        deaths.at("written", step)
        part = settle(self, folder)
        deaths.at("settled", step)
        return part

    SaveFolders.create, SaveFolders.sync = makes, settles


def state_of(step, piece, number):
    """What a piece of the table has to be after a step."""
    return tf.random.stateless_normal(piece.shape, [step, number])


def spoil(step):
    """A byte of what the second server has written."""
    (folder,) = pathlib.Path(os.environ["ROVER_CHECKPOINT_SHARDS"]).glob(f"step-{step:012d}-*")
    path = folder / "state.data-00001-of-00003"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def train(resolver, deaths, steps):
    """The chief: a table on all servers is something else after each step."""
    cut = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=cut)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = tf.Variable(tf.zeros([ROWS, 8]), name="table")
        count = tf.Variable(0, dtype=tf.int64, name="count")
    state = tf.train.Checkpoint(table=table, count=count)
    checkpointer = TensorFlowCheckpointer(state, settle=coordinator.join)
    step = checkpointer.restore()
    whole = int(count.numpy()) == step and all(
        (piece.numpy() == (state_of(step, piece, number).numpy() if step else 0)).all()
        for number, piece in enumerate(table.variables)
    )
    source = checkpointer.restored_from
    print(f"starts after {step} from {source}: {'whole' if whole else 'wrong'}", flush=True)
    while step < steps:
        step += 1
        for number, piece in enumerate(table.variables):
            piece.assign(state_of(step, piece, number))
        count.assign(step)
        checkpointer.step(step, total_steps=steps)
        deaths.at("sealed", step)
        if deaths.is_now("damaged", step):
            spoil(step)
            os.kill(os.getpid(), signal.SIGKILL)
        print(f"step {step}", flush=True)
    checkpointer.wait(steps)
    checkpointer.close()
    print("done", flush=True)


def main():
    """Serve or train, as TF_CONFIG says."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        place = {"job_name": resolver.task_type, "task_index": resolver.task_id}
        tf.distribute.Server(resolver.cluster_spec(), **place, protocol="grpc").join()
    else:
        folder, steps, *wanted = sys.argv[1:]
        deaths = Deaths(pathlib.Path(folder), frozenset(wanted))
        stop_at_points(deaths)
        train(resolver, deaths, int(steps))


if __name__ == "__main__":
    main()
