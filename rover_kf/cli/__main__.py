# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m rover_kf.cli``: the same as ``rover-kf``."""

from __future__ import annotations

from rover_kf.cli.main import main

main()
