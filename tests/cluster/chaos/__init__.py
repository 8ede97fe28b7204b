# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One job on a real cluster while things break, one after the other and two at a time.

``journal`` is what the training processes wrote down, and pure; ``scene`` is what may be broken;
``faults`` breaks one thing; ``scenarios`` lists them with what has to be told; ``verdict`` says
what a scenario cost and which promise it broke, and is pure; ``matrix`` is the table of all.
"""
