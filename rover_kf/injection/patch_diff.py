# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a patch changes, as a unified diff of YAML that a person can read."""

from __future__ import annotations

import difflib
from typing import Any

import yaml

from rover_kf.api.jobs import Manifest


def diff(before: Manifest, after: Manifest, *, source: str = "manifest") -> str:
    """Unified diff of two manifests; empty if they say the same."""
    return "".join(
        difflib.unified_diff(
            to_yaml(before).splitlines(keepends=True),
            to_yaml(after).splitlines(keepends=True),
            fromfile=source,
            tofile=f"{source} (with rover-kf)",
        )
    )


def to_yaml(manifest: Manifest) -> str:
    """YAML in the manifest's own order of keys, long strings unbroken."""
    return yaml.dump(
        manifest, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=1 << 16
    )


class _Dumper(yaml.SafeDumper):
    """Writes repeated parts out instead of anchors, and many-line strings as blocks."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base class's signature
        return True


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _represent_text)
