# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Log lines that a store of logs can be asked by: whose they are, and of which rank."""

from __future__ import annotations

import json
import logging
import pathlib
import subprocess
import sys

import pytest

from rover_kf.api import logging_format
from rover_kf.api.jobs import JobKey


def line(form, message, *args, **context):
    record = logging.LogRecord("rover_kf.x", logging.WARNING, "x.py", 1, message, args, None)
    return form(context).format(record)


def test_a_line_says_whose_it_is():
    """A sidecar's context, the rank and the job that the message speaks of, a time that sorts."""
    told = json.loads(
        line(
            logging_format.JsonFormatter,
            "rank %d: step %d lost",
            3,
            40,
            job="digits",
            pod="digits-0",
        )
    )
    assert told.pop("time").endswith("Z")
    assert told == {
        "level": "WARNING",
        "logger": "rover_kf.x",
        "message": "rank 3: step 40 lost",
        "job": "digits",
        "pod": "digits-0",
        "rank": 3,
    }
    key = JobKey("team", "digits", "TFJob")
    of_job = json.loads(line(logging_format.JsonFormatter, "%s: away: %s", key, "no route"))
    assert (of_job["namespace"], of_job["job"], of_job["kind"]) == ("team", "digits", "TFJob")
    assert "rank" not in of_job


def test_no_message_breaks_out_of_its_line():
    """Line ends and quotes are inside the one object, and so is a traceback."""
    told = line(logging_format.JsonFormatter, "%s", 'a\n{"level": "ERROR"}\r\u2028')
    assert len(told.split("\n")) == 1
    assert json.loads(told)["message"] == 'a\n{"level": "ERROR"}\r\u2028'
    try:
        pathlib.Path("/nowhere/at/all").read_text()
    except OSError:
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "away", None, sys.exc_info())
    found = json.loads(logging_format.JsonFormatter({}).format(record))
    assert "FileNotFoundError: " in found["exception"]


def test_text_has_the_same_context():
    """In front of the message; a per cent sign in a value is just that."""
    told = line(logging_format.TextFormatter, "rank %d", 1, job="d%s", pod="p-0")
    assert told.endswith(" WARNING job=d%s pod=p-0 rank 1")


@pytest.mark.parametrize("form", ["json", "text", ""])
def test_a_process_logs_so(form):
    """The root logger, in a process of its own; nothing but its lines is on the stream."""
    program = (
        "import logging, sys; from rover_kf.api import logging_format\n"
        "logging_format.configure(sys.argv[1], job='digits', pod='')\n"
        "logging.getLogger('any').info('rank 2 is here')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, form], capture_output=True, text=True, check=True
    )
    if form == "text":
        assert done.stderr.endswith("INFO job=digits rank 2 is here\n")
    else:
        (only,) = done.stderr.splitlines()
        assert json.loads(only).items() >= {"job": "digits", "rank": 2}.items()
        assert "pod" not in json.loads(only)


@pytest.mark.parametrize("program", ["rover_kf.sidecar", "controller"])
def test_an_unknown_form_is_refused(program):
    """Before anything is served, with what is allowed."""
    given = {
        "ROVER_LOG_FORMAT": "xml", "ROVER_NAMESPACE": "n", "ROVER_SIDECAR_IMAGE": "i",
        "ROVER_HOME": "/nowhere", "ROVER_JOB": "j", "ROVER_POD_NAME": "p", "ROVER_POD_UID": "u",
        "ROVER_POD_IP": "127.0.0.1", "ROVER_REPLICA_TYPE": "worker", "ROVER_REPLICA_INDEX": "0",
        "ROVER_COORDINATOR": "127.0.0.1", "ROVER_NODES": "1", "ROVER_MIN_NODES": "1",
        "ROVER_MAX_NODES": "1", "ROVER_ARENA_BYTES": "1", "ROVER_AUTH": "shared",
        "ROVER_TOKEN_HOME": "/nowhere", "PYTHONPATH": ":".join(sys.path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", program],
        capture_output=True,
        text=True,
        check=False,
        env=given,
        timeout=60,
    )
    assert done.returncode != 0
    assert "ROVER_LOG_FORMAT is 'xml'; allowed: json or text" in done.stderr
