# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Flash checkpoints for Lightning."""

from rover_kf.trainer.lightning.callback import FlashCheckpoint

__all__ = ["FlashCheckpoint"]
