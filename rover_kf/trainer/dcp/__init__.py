# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint through flash checkpoints."""

from rover_kf.trainer.dcp.storage import Reader, Writer

__all__ = ["Reader", "Writer"]
