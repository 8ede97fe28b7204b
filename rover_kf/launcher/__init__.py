# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""rover-run: stands in the trainer container where torchrun stood.

Standard library only, but for the process that training processes are forked from (zygote.py),
which has torch loaded. Runs in the user's image, on Python 3.10 and later.
"""
