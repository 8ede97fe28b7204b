# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Images with torch in them, as nodes of our own cluster see it: this machine's (machine_folders).

One as users have it, with Python and torch and nothing of rover-kf; one that has the project, too,
for the pipeline step that tries a training script itself.
"""

from __future__ import annotations

from testcluster import host_python, machine_folders, settings
from testcluster.images import Images
from testcluster.layout import Image

TORCH_IMAGE = "localhost/python-torch:dev"
TORCH_STEPS_IMAGE = "localhost/rover-kf-steps-torch:dev"


def build(images: Images) -> list[Image]:
    """Both."""
    environment = host_python.torch_environment()
    folders = host_python.folders(environment)
    tree = str(settings.REPOSITORY)
    user = {
        "PATH": host_python.search_path(environment),
        "HOME": "/tmp",
        "USER": "user",
        "LOGNAME": "user",
    }
    plain = {**user, **machine_folders.variables(folders)}
    project = {**user, "PYTHONPATH": tree, "PYTHONDONTWRITEBYTECODE": "1"}
    project |= machine_folders.variables({**folders, tree: tree})
    # Steps do not run as root, and in the base image root's home, where the folders are, is shut.
    steps = images.configured(TORCH_STEPS_IMAGE, project, empty=True)
    return [images.configured(TORCH_IMAGE, plain), steps]
