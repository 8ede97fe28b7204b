# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""In the training process: checkpoints and reports of steps; standard library and torch."""
