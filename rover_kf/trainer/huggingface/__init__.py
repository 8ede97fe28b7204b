# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Flash checkpoints for Hugging Face transformers' Trainer."""

from rover_kf.trainer.huggingface.trainer import Trainer

__all__ = ["Trainer"]
