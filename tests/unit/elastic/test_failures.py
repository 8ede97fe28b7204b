# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""classify: what a death means."""

from __future__ import annotations

import signal

import pytest

from rover_kf.elastic.failures import Evidence, TrainingError, classify


def error(kind: type[BaseException], message: str = "said") -> TrainingError:
    bases = tuple(base.__name__ for base in kind.__mro__[:-1])
    return TrainingError(kind.__name__, bases, message, f"Traceback\n  line\n{kind.__name__}")


@pytest.mark.parametrize(
    ("evidence", "kind", "action", "counts"),
    [
        (Evidence(-signal.SIGKILL), "process_killed", "restart", True),
        (Evidence(-signal.SIGKILL, 1), "out_of_memory", "restart", True),
        (Evidence(-signal.SIGSEGV, 1), "crashed", "restart", True),
        (Evidence(-34), "process_killed", "restart", True),
        (Evidence(1), "error", "restart", True),
        (Evidence(1, 0, error(ModuleNotFoundError)), "user_error", "fail_job", True),
        (Evidence(1, 0, error(IndentationError)), "user_error", "fail_job", True),
        (Evidence(1, 0, error(AssertionError)), "user_error", "fail_job", True),
        (Evidence(1, 0, error(MemoryError)), "out_of_memory", "restart", True),
        (Evidence(1, 0, error(ValueError, "gloo")), "error", "restart", True),
        (
            Evidence(1, 0, error(RuntimeError, "[gloo/x.cc:1] Connection closed by peer")),
            "peer_lost",
            "restart",
            False,
        ),
        (Evidence(1, 0, error(ConnectionResetError, "odd")), "error", "restart", True),
    ],
)
def test_classify(evidence, kind, action, counts):
    """Each kind of evidence has its verdict, and the reason is never empty."""
    verdict = classify(evidence)
    assert (verdict.kind, verdict.action, verdict.counts) == (kind, action, counts)
    assert verdict.reason


def test_traceback_is_told():
    """A user error's reason holds the traceback's end."""
    assert classify(Evidence(1, 0, error(NameError))).reason.endswith("NameError")
