# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""By hand: `PYTHONPATH=tests/cluster python -m testcluster VERB`.

build   compile what the cluster runs, the S3 server of other tests, and Helm
images  build controller, sidecar and steps from the working tree; a cluster that runs gets them
up      start a cluster (or find the running one); prints its kubeconfig's path
load    import image archives on every node
status  what runs
down    remove it, or what a dead one left
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from testcluster import binaries, cluster, releases, settings
from testcluster.errors import ClusterError
from testcluster.images import Images


def main() -> int:
    """Do what the command line says; 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(
        prog="testcluster", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("verb", choices=("build", "images", "up", "load", "status", "down"))
    parser.add_argument("archive", nargs="*", type=pathlib.Path, help="for load")
    parser.add_argument("--nodes", type=int, default=3, help="for up (default 3)")
    parser.add_argument("--dir", type=pathlib.Path, help="run directory (default: in the cache)")
    options = parser.parse_args()
    try:
        return _act(options)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1


def _act(options: argparse.Namespace) -> int:
    if options.verb == "build":
        binaries.build(releases.find(settings.kubernetes()))
        binaries.compiled(binaries.OBJECT_SERVER)
        binaries.compiled(binaries.HELM)
    elif options.verb == "images":
        made = Images(settings.cache())
        images = [*made.project(), *made.steps()]
        running = cluster.current()
        if running:
            running.load(images)
        print(*(image.name for image in images), sep="\n")
    elif options.verb == "up":
        print(cluster.up(nodes=options.nodes, root=options.dir).kubeconfig)
    elif options.verb == "load":
        _running().load_archives(options.archive)
    elif options.verb == "status":
        print(_running().kubectl("get", "nodes,pods", "-A", "-o", "wide"), end="")
    else:
        cluster.down(options.dir)
    return 0


def _running() -> cluster.Cluster:
    found = cluster.current()
    if found is None:
        raise ClusterError("no cluster runs here; start one with `make cluster-up`")
    return found


if __name__ == "__main__":
    sys.exit(main())
