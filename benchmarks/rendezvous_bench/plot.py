# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark's picture: CPU seconds over launchers, both axes logarithmic.

The dotted line is what linear growth looks like.
"""

from __future__ import annotations

import pathlib
from typing import Any

import matplotlib as mpl

TARGET_SECONDS = 5.0


def draw(report: dict[str, Any], path: pathlib.Path) -> None:
    """Write the picture as SVG."""
    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of what draws

    figure, axes = plt.subplots(figsize=(7.2, 4.4))
    for name, label in (
        ("form_seconds", "state machine: all join, one round"),
        ("lose_process_seconds", "state machine: a process dies, next round"),
    ):
        _line(axes, report["agents"], name, label, "o-")
    _line(axes, report["http"], "form_seconds", "whole sidecar with HTTP and JSON", "s--")
    sizes = sorted(map(int, report["agents"]))
    last = report["agents"][str(sizes[-1])]["form_seconds"]
    linear = [last * size / sizes[-1] for size in sizes]
    axes.plot(sizes, linear, ":", color="grey", label="linear")
    axes.axhline(TARGET_SECONDS, color="firebrick", linewidth=0.8, label="5 s")
    axes.set(
        xscale="log", yscale="log", xlabel="launchers", ylabel="CPU seconds of the coordinator"
    )
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _line(axes: Any, found: dict[str, Any], name: str, label: str, style: str) -> None:
    # Less than a tick of the kernel's clock is no figure.
    points = sorted((int(size), one[name]) for size, one in found.items() if one[name] > 0)
    if points:
        axes.plot(*zip(*points, strict=True), style, label=label)
