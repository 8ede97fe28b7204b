# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Use what is copied into a user's image, on a bare Python; tell of it in JSON.

use_runtime.py RUNTIME FOLDER    imports all of the runtime, keeps a snapshot below FOLDER
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import sys

CONTENT = bytes(range(256)) * 64


def import_all(runtime: pathlib.Path) -> dict[str, str]:
    """The package that each module lacked, by the module's name; empty: none, it is imported."""
    lacked: dict[str, str] = {}
    for path in sorted((runtime / "rover_kf").rglob("*.py")):
        name = ".".join(path.relative_to(runtime).with_suffix("").parts).removesuffix(".__init__")
        try:
            importlib.import_module(name)
            lacked[name] = ""
        except ModuleNotFoundError as error:
            lacked[name] = str(error.name)
    return lacked


def write(folder: pathlib.Path) -> None:
    """Write a snapshot into a new arena and seal it, as a trainer would."""
    from rover_kf.api.states import NO_ROUND, State  # noqa: PLC0415
    from rover_kf.checkpoint.arena.arena_allocation import allocate  # noqa: PLC0415
    from rover_kf.checkpoint.format import snapshot  # noqa: PLC0415 - the path is set by now

    layout = snapshot.plan([snapshot.Entry("weight", "U8", (len(CONTENT),), 1)], {"state": "{}"})
    arena = allocate(folder, 0, layout.length, max_bytes=64 << 20)
    with arena.fill() as filling:
        os.pwrite(filling.descriptor, snapshot.header(layout, {"state": "{}"}), 0)
        os.pwrite(filling.descriptor, CONTENT, layout.data_begin)
        filling.seal(
            state=State(NO_ROUND, 7), length=layout.length, rank=0, world_size=1, replicated=True
        )


def read(folder: pathlib.Path) -> tuple[int, bytes]:
    """Step and tensor of the newest snapshot, as a trainer's successor finds it."""
    from rover_kf.checkpoint.arena.arena import Arena  # noqa: PLC0415
    from rover_kf.checkpoint.format import snapshot  # noqa: PLC0415

    arena = Arena(folder / "0")
    with arena.pin(arena.sealed()[0]) as pin:
        data = os.pread(pin.descriptor, pin.seal.length, 0)
    weight = snapshot.read(data).tensors["weight"]
    return pin.seal.state.step, data[weight.begin : weight.end]


def main() -> None:
    """Do all of it."""
    runtime, folder = map(pathlib.Path, sys.argv[1:])
    sys.path.insert(0, str(runtime))
    lacked = import_all(runtime)
    write(folder)
    step, content = read(folder)
    told = {"lacked": lacked, "step": step, "whole": content == CONTENT}
    print(json.dumps({"python": sys.version.split()[0], **told}))


if __name__ == "__main__":
    main()
