# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters of third-party readers; pyarrow is imported where tables are read.

They are map-style. The elastic loaders use their ``blocks`` and ``fingerprint``
(rover_kf.trainer.data.epoch_plan).
"""
