# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Topics of Kafka as data to train on; needs the package confluent-kafka, and only when used."""
