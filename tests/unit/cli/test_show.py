# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Values as text for a terminal."""

from __future__ import annotations

from rover_kf.api.leases import DataStatus
from rover_kf.cli.show import data_part


def test_how_far_a_data_set_is_read():
    """A stream has no epochs, no end, and may have no slots yet."""
    epoch = DataStatus("train", 1, 3, 5000, 1234, 64, 8, 120.4, 73.2)
    assert data_part(epoch) == "train 25% of epoch 2/3 (120/s, 73 s left, 8 set aside)"
    stream = DataStatus("clicks", 0, 1, 0, 0, 0, 0, 0.0)
    assert data_part(stream) == "clicks (0/s)"
