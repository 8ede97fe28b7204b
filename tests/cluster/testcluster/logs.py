# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Everything a person needs to understand a failed test, written into one folder."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterable

from testcluster.errors import CommandFailed

_TAIL_BYTES = 200_000


def collect(
    kubectl: Callable[..., str],
    namespaces: Iterable[str],
    folder: pathlib.Path,
    daemons: pathlib.Path | None,
) -> None:
    """Write objects, Events and logs of the namespaces and the ends of the daemons' logs.

    A part that cannot be read leaves its error in its file: a broken cluster must not hide the
    rest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "nodes.txt", kubectl, "describe", "nodes")
    for namespace in namespaces:
        place = folder / namespace
        place.mkdir(exist_ok=True)
        kinds = "pytorchjobs,tfjobs,pods,services,persistentvolumeclaims,configmaps,deployments"
        _write(place / "objects.yaml", kubectl, "-n", namespace, "get", kinds, "-o", "yaml")
        _write(place / "pods.txt", kubectl, "-n", namespace, "describe", "pods")
        _write(
            place / "events.txt",
            kubectl,
            "-n",
            namespace,
            "get",
            "events",
            "--sort-by=.lastTimestamp",
            "-o",
            "wide",
        )
        _logs(kubectl, namespace, place)
    if daemons is not None and daemons.is_dir():
        for log in daemons.glob("*.log"):
            _tail(log, folder / "daemons" / log.name)


def _logs(kubectl: Callable[..., str], namespace: str, place: pathlib.Path) -> None:
    try:
        pods = json.loads(kubectl("-n", namespace, "get", "pods", "-o", "json"))["items"]
    except CommandFailed as failure:
        (place / "pods.error").write_text(str(failure))
        return
    for pod in pods:
        name, status = pod["metadata"]["name"], pod.get("status", {})
        for container in [
            *status.get("initContainerStatuses", []),
            *status.get("containerStatuses", []),
        ]:
            words = ("-n", namespace, "logs", name, "-c", container["name"], "--timestamps")
            _write(place / f"{name}.{container['name']}.log", kubectl, *words)
            if container["restartCount"]:
                _write(
                    place / f"{name}.{container['name']}.previous.log",
                    kubectl,
                    *words,
                    "--previous",
                )


def _write(path: pathlib.Path, kubectl: Callable[..., str], *words: str) -> None:
    try:
        path.write_text(kubectl(*words))
    except CommandFailed as failure:
        path.write_text(f"could not be read: {failure}\n")


def _tail(source: pathlib.Path, target: pathlib.Path) -> None:
    target.parent.mkdir(exist_ok=True)
    with source.open("rb") as log:
        log.seek(max(0, source.stat().st_size - _TAIL_BYTES))
        target.write_bytes(log.read())
