# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the command's exit codes mean; docs/cli.md is made of this table."""

from __future__ import annotations

DONE, FAILED, REFUSED, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143

MEANINGS = {
    DONE: "Done; of a job that was waited for: it succeeded.",
    FAILED: (
        "It failed: the job did, the cluster did not answer, there is no such job, or doctor found "
        "something broken."
    ),
    REFUSED: "Bad input, or a name that is taken; nothing was created.",
    INTERRUPTED: "Interrupted by Ctrl-C; an embedded job was drained first.",
    TERMINATED: "Ended by SIGTERM, in the same way.",
}
