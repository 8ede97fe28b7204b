# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What several tests of faults share."""

from __future__ import annotations

import pytest

from tests.support.servers.kafka_broker import kafka_broker


@pytest.fixture(scope="session")
def kafka(tmp_path_factory):
    """A Kafka broker that serves; a test that ends it starts it again."""
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
