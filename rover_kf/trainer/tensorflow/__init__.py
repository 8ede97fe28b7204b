# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Flash checkpoints and shared data for TensorFlow."""

from rover_kf.trainer.tensorflow.checkpointer import TensorFlowCheckpointer
from rover_kf.trainer.tensorflow.scheduled_records import ScheduledRecords
from rover_kf.trainer.tensorflow.session_state import SessionState
from rover_kf.trainer.tensorflow.shared_records import SharedRecords

__all__ = ["ScheduledRecords", "SessionState", "SharedRecords", "TensorFlowCheckpointer"]
