# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``make screenshots``: the pictures of docs/report.md, of a real run in a real Chromium.

The demo is run (manifests/samples/demo.py: trained, killed, scaled) unless a report of it is given.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.browser import browser  # noqa: E402 - found on the path above

IMAGES = pathlib.Path(__file__).parent / "images"
WIDTH, HEIGHT = 900, 850
SHOTS = (("report.png", "light"), ("report-dark.png", "dark"))
SHOWN = "World over time"
"""Heading that stands at the top of each picture."""


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=pathlib.Path, help="of the demo; run it if not given")
    given = parser.parse_args().report
    with tempfile.TemporaryDirectory() as folder:
        report = given or _demo(pathlib.Path(folder))
        IMAGES.mkdir(exist_ok=True)
        with browser() as window:
            window.resize(WIDTH, HEIGHT)
            for name, scheme in SHOTS:
                window.emulate(color_scheme=scheme)
                window.open(report.absolute().as_uri())
                window.run(
                    "[...document.querySelectorAll('h2')]"
                    ".find((one) => one.innerText === arguments[0]).scrollIntoView();"
                    "document.documentElement.style.scrollbarWidth = 'none'",
                    SHOWN,
                )
                sys.stdout.write(f"{window.picture(IMAGES / name)}\n")


def _demo(folder: pathlib.Path) -> pathlib.Path:
    demo = ROOT / "manifests" / "samples" / "demo.py"
    subprocess.run([sys.executable, demo, "--out", folder / "demo.json"], check=True)
    return folder / "demo.html"


if __name__ == "__main__":
    main()
