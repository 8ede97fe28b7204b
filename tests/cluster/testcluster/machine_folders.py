# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Images that see folders of this machine, by what a node runs in place of runc.

As NVIDIA's container runtime does with its driver: an image names folders in its configuration, and
the runtime mounts them, read-only, into containers of it. So there is an image with Python and
torch that is small, for those who take an image and nothing else; API server and kubelet know it as
they know any other.
"""

from __future__ import annotations

import json
import pathlib
import shlex
import shutil
import sys
from collections.abc import Mapping

VARIABLE = "ROVER_TEST_MACHINE_FOLDERS"
"""In an image: ``PLACE=SOURCE`` of each folder, separated by colons."""

_SCRIPT = """#!/bin/sh
bundle=
before=
for word; do
  [ "$before" = --bundle ] && bundle=$word
  before=$word
done
if [ -n "$bundle" ] && grep -q '"{variable}=' "$bundle/config.json"; then
  {python} -S {module} "$bundle/config.json" || exit
fi
exec {runc} "$@"
"""


def variables(folders: Mapping[str, str]) -> dict[str, str]:
    """What an image has to have to see these folders.

    Args:
        folders: of this machine, by the place where they are to be seen.
    """
    return {VARIABLE: ":".join(f"{place}={source}" for place, source in folders.items())}


def install(path: pathlib.Path) -> pathlib.Path:
    """Write the program that containerd is to run in place of runc; returns its path."""
    words = {"python": sys.executable, "module": __file__, "runc": shutil.which("runc") or "runc"}
    quoted = {name: shlex.quote(word) for name, word in words.items()}
    path.write_text(_SCRIPT.format(variable=VARIABLE, **quoted))
    path.chmod(0o755)
    return path


def mount(config: pathlib.Path) -> None:
    """Add the folders that a container's variables name to the runtime's configuration of it."""
    document = json.loads(config.read_text())
    told = dict(word.split("=", 1) for word in document["process"]["env"])
    for pair in told[VARIABLE].split(":"):
        place, source = pair.split("=", 1)
        options = ["rbind", "rprivate", "ro"]
        entry = {"destination": place, "type": "bind", "source": source, "options": options}
        document["mounts"].append(entry)
    config.write_text(json.dumps(document))


if __name__ == "__main__":
    mount(pathlib.Path(sys.argv[1]))
