# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The image that components run in: target ``steps`` of controller/Dockerfile, with kfp in it."""

from __future__ import annotations

import rover_kf

IMAGE = f"rover-kf-steps:{rover_kf.__version__}"
