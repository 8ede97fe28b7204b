# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What notebooks need beside this machine."""

from __future__ import annotations

import pytest
from kafka_broker import kafka_broker


@pytest.fixture
def kafka(tmp_path):
    """A Kafka broker that serves."""
    with kafka_broker(tmp_path / "kafka") as broker:
        yield broker
