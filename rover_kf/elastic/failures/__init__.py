# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The meaning of the end of a process or a pod: kind, scope, action, reason.

classify.py matches ExitEvidence with the rules of processes.py and pods.py, from which
docs/failures.md is generated.
"""
