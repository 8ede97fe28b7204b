# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What pytest may be told of the cluster; all but --keep-cluster is for one that is not ours."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from testcluster.deployment import ProjectImages


def declare(group: Any) -> None:
    """Add the options to a group of pytest's parser."""
    group.addoption(
        "--chaos",
        default="some",
        help="which faults: some (default), all, random (all, in an order by chance), or a pattern "
        "of their names",
    )
    group.addoption("--chaos-seed", type=int, default=0, help="of --chaos random (default 0)")
    group.addoption("--keep-cluster", action="store_true", help="leave the started cluster running")
    group.addoption(
        "--kubeconfig", type=pathlib.Path, help="use this cluster instead of starting one"
    )
    group.addoption(
        "--trainer-image", help="there: with Python >= 3.10, torch, numpy and scikit-learn"
    )
    group.addoption("--toolbox-image", default="busybox:1.36", help="there (default %(default)s)")
    group.addoption(
        "--images",
        type=_images,
        metavar="PREFIX:TAG",
        help="there: of controller and sidecar (default: as the manifests name them)",
    )
    group.addoption(
        "--storage-class", default="", help="there: of claims that many pods write (default: its)"
    )


def _images(text: str) -> ProjectImages:
    try:
        return ProjectImages.parse(text)
    except ValueError as failure:
        raise argparse.ArgumentTypeError(str(failure)) from failure
