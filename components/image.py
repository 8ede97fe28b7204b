# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The image that components run in: the controller's, which holds the client and kfp."""

from __future__ import annotations

import rover_kf

IMAGE = f"rover-kf-controller:{rover_kf.__version__}"
