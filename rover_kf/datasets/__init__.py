# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters of readers that others wrote; standard library only, and pyarrow where tables are read.

They are map-style: any DataLoader takes them. ``blocks`` and ``fingerprint`` are what the elastic
ones request besides (rover_kf.trainer.data.epoch_position).
"""
