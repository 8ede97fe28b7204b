# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An image with Python and torch, as users have one, for nodes of our own cluster: this machine's.

What is in it the nodes mount (machine_folders); nothing of rover-kf is.
"""

from __future__ import annotations

from testcluster import host_python, machine_folders
from testcluster.images import Images
from testcluster.layout import Image

TORCH_IMAGE = "localhost/python-torch:dev"


def build(images: Images) -> list[Image]:
    """The image."""
    environment = host_python.torch_environment()
    user = {"PATH": host_python.search_path(environment), "HOME": "/tmp"}
    user |= {"USER": "user", "LOGNAME": "user"}
    folders = machine_folders.variables(host_python.folders(environment))
    return [images.configured(TORCH_IMAGE, {**user, **folders})]
