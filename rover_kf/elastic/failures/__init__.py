# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the end of a process or a pod means: kind, scope, action, reason.

A launcher or a reconciler gathers ExitEvidence and asks classify.py, which is pure and goes through
the rules of processes.py and pods.py. docs/failures.md is made of those rules.
"""
