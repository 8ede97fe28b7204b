# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The components' files for palettes, read by Elyra itself."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import yaml

pytestmark = pytest.mark.timeout(1200)  # Elyra is installed first

HERE = pathlib.Path(__file__).parent
PALETTES = sorted((HERE.parents[1] / "components").glob("*/palette.yaml"))
KINDS = {"String": "string", "Integer": "number", "Float": "number", "Boolean": "boolean"}


def test_elyra_shows_every_component(beside, tmp_path):
    """Each file becomes a node of the palette; each input is a field of its type with its default,
    asked for only where the component needs it; each output is one."""
    done = subprocess.run(
        [sys.executable, HERE / "scripts" / "elyra_palette.py", *PALETTES],
        env={**os.environ, "PYTHONPATH": beside("elyra"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    described = {str(path): yaml.safe_load(path.read_text()) for path in PALETTES}
    assert sorted(told["palette"]) == sorted(one["name"] for one in described.values())
    assert told["shown"].keys() == described.keys()
    print(f"{len(described)} components in Elyra's palette")
    for path, document in described.items():
        properties = told["shown"][path]["properties"]
        outputs = {f"output_{item['name'].lower()}" for item in document["outputs"]}
        assert properties.keys() == {item["name"] for item in document["inputs"]} | outputs
        for item in document["inputs"]:
            kind, required, value, allowed = properties[item["name"]]
            assert (kind, required) == (KINDS[item["type"]], not item.get("optional", False))
            assert str(value) == item.get("default", "") or float(value) == float(item["default"])
            assert "inputvalue" in allowed
        for name in outputs:
            assert properties[name][3] == [None], "an output takes no input"
