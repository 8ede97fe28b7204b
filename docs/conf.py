# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - Sphinx wants it just so
"""How Sphinx makes the site: ``make docs``.

The repository's root is the source folder, so that links to samples, components and
the readme are checked as well.
"""

from __future__ import annotations

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
# The packages that the API reference has to import are those of the development environment.
sys.path.append(os.environ.get("ROVER_KF_PACKAGES", ""))

import rover_kf  # noqa: E402 - found on the path above

project = "rover-kf"
author = "The rover-kf authors"
version = release = rover_kf.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/*/*.md",
    "components/*/README.md",
    "controller/README.md",
    "manifests/**/README.md",
]
exclude_patterns = ["build", ".venv"]
html_theme = "furo"
html_title = f"rover-kf {version}"
html_copy_source = False
# As in the readme on a forge: a heading is linked to by its words.
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
