# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Real servers that tests start: Kafka, S3, PostgreSQL, Prometheus."""
