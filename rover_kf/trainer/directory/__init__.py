# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of frameworks that save a folder; needs no torch."""

from rover_kf.trainer.directory.checkpointer import DirectoryCheckpointer

__all__ = ["DirectoryCheckpointer"]
