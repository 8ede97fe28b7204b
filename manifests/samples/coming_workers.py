# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Train on scikit-learn's table of tumours with workers that come and go while the job runs.

The command of a TFJob's Chief, Workers and PS alike; coming-workers.yaml beside it is one, with
``enableDynamicWorker``. Replication between graphs (tf.compat.v1): each worker is a client of its
own and writes to the same variables. Needs tensorflow and scikit-learn.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import time

import numpy as np
import tensorflow as tf

from rover_kf.trainer.tensorflow import TensorFlowCheckpointer, dynamic_cluster
from rover_kf.trainer.tensorflow.session_state import SessionState
from rover_kf.trainer.tensorflow.shared_records import SharedRecords

v1 = tf.compat.v1
BATCH, WIDTH = 16, 32
LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.FailedPreconditionError)
"""What a parameter server's loss looks like to a client."""


def read_table() -> tuple[np.ndarray, np.ndarray]:
    """Its 569 rows of 30 measures, each scaled to mean 0 and deviation 1, and who is benign."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("coming_workers.py needs scikit-learn: pip install scikit-learn")
    package = pathlib.Path(spec.submodule_search_locations[0])
    rows = np.loadtxt(package / "datasets/data/breast_cancer.csv", delimiter=",", skiprows=1)
    measures = rows[:, :-1]
    scaled = (measures - measures.mean(0)) / measures.std(0)
    return scaled.astype("float32"), rows[:, -1:].astype("float32")


class Graph:
    """Two layers on the servers; what a worker does with a batch of rows."""

    def __init__(self, place: dynamic_cluster.DynamicCluster, rows: int, columns: int) -> None:
        setter = v1.train.replica_device_setter(
            ps_tasks=place.servers, worker_device=place.device, ps_device="/job:ps"
        )
        with v1.device(setter):
            draw = v1.random_normal_initializer(stddev=0.2, seed=0)
            first = v1.get_variable("first", [columns, WIDTH], initializer=draw)
            last = v1.get_variable("last", [WIDTH, 1], initializer=draw)
            bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer())
            # How often each row was trained on; it goes back with a checkpoint as weights do.
            zeros = {"initializer": v1.zeros_initializer(), "dtype": tf.int64, "trainable": False}
            self.seen = v1.get_variable("seen", [rows], **zeros)
            self.steps = v1.get_variable("steps", [], **zeros)
            kept = (first, last, bias, self.seen, self.steps)
            self.variables = {one.op.name: one for one in kept}
            self.measures = v1.placeholder(tf.float32, [None, columns])
            self.labels = v1.placeholder(tf.float32, [None, 1])
            self.numbers = v1.placeholder(tf.int64, [None])
            logits = tf.nn.relu(self.measures @ first) @ last + bias
            losses = tf.nn.sigmoid_cross_entropy_with_logits(self.labels, logits)
            self.loss = tf.reduce_mean(losses)
            learned = v1.train.GradientDescentOptimizer(0.05).minimize(self.loss)
            with tf.control_dependencies([learned]):
                count = v1.scatter_add(self.seen, self.numbers, tf.ones_like(self.numbers))
                self.train = tf.group(count, self.steps.assign_add(1, read_value=False))
            self.init = v1.variables_initializer(list(self.variables.values()))
            self.lacking = v1.report_uninitialized_variables(list(self.variables.values()))


def lead(
    session: v1.Session, graph: Graph, table: tuple[np.ndarray, ...], given: argparse.Namespace
) -> None:
    """What the chief does: begin, save, see when all is done."""
    records = SharedRecords(len(table[0]), batch=BATCH, epochs=given.epochs)
    state = SessionState(session, graph.variables)
    checkpointer = TensorFlowCheckpointer(state, records=records)
    session.run(graph.init)
    told = step = checkpointer.restore()
    whole = {graph.measures: table[0], graph.labels: table[1]}
    source = f"{step} from {checkpointer.restored_from}"
    print(f"starts after step {source}: loss {session.run(graph.loss, whole):.6f}", flush=True)
    while not records.finished:  # from the first look on workers have records
        step, lacking = session.run([graph.steps, graph.lacking])
        if len(lacking):
            raise tf.errors.AbortedError(None, None, "a parameter server has begun anew")
        if step > told:
            checkpointer.step(int(step))
            print(f"step {step} loss {session.run(graph.loss, whole):.6f}", flush=True)
            told = step
        time.sleep(0.2)
    step = int(session.run(graph.steps))
    checkpointer.step(step, total_steps=step)
    checkpointer.close()
    counts = session.run(graph.seen)
    result = {"steps": step, "loss": float(session.run(graph.loss, whole))}
    result |= {"rows": int(counts.sum()), "least": int(counts.min()), "most": int(counts.max())}
    print(json.dumps({**result, "resumed": checkpointer.restored_from}), flush=True)


def work(
    session: v1.Session, graph: Graph, table: tuple[np.ndarray, ...], given: argparse.Namespace
) -> None:
    """What a worker does from when it comes until it goes, or all is done."""
    while len(session.run(graph.lacking)):
        time.sleep(0.5)  # the chief has not begun
    records = SharedRecords(len(table[0]), batch=BATCH, epochs=given.epochs)
    for taken, numbers in enumerate(records, start=1):
        batch = {graph.measures: table[0][numbers], graph.labels: table[1][numbers]}
        session.run(graph.train, {**batch, graph.numbers: numbers})
        print(f"took {taken}", flush=True)
        time.sleep(given.pause)


def main() -> None:
    """Serve, lead or work, as the job says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each batch")
    given = parser.parse_args()
    place = dynamic_cluster.read()
    server = tf.distribute.Server(
        place.cluster, job_name=place.task, task_index=place.index, protocol="grpc"
    )
    if place.task == "ps":
        server.join()
    table = read_table()
    with tf.Graph().as_default():
        graph = Graph(place, *table[0].shape)
        settings = v1.ConfigProto(device_filters=place.filters)
        with v1.Session(server.target, config=settings) as session:
            try:
                (work if place.task == "worker" else lead)(session, graph, table, given)
            except LOST as error:
                raise tf.errors.UnavailableError(None, None, f"lost a server: {error}") from error


if __name__ == "__main__":
    main()
