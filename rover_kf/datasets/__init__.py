# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Data sets of files, read by blocks; standard library only, and pyarrow where tables are read.

They are map-style: any DataLoader takes them. ``blocks`` and ``fingerprint`` are what the elastic
ones ask for besides (rover_kf.trainer.data.epoch_position).
"""
