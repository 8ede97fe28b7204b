# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A long job under faults: which come, how they are made, what is measured, what is a failure.

``schedule`` and ``verdict`` are pure; ``job`` runs the job, ``strike`` breaks it, ``trace`` reads
what its training processes say, ``usage`` samples processes and files.
"""
