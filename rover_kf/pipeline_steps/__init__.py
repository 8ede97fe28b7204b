# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a pipeline's step does for a job: launch it, keep it, tell of it, clean up after it."""
