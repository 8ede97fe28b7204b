# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""rover-run, which replaces torchrun in the trainer's container.

It needs the standard library only, except in the zygote (zygote.py), which loads torch.
"""
